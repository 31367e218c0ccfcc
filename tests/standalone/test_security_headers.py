"""Every response of the standalone site says what a browser may do with it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from jobscheduler.security_headers import CONTENT_SECURITY_POLICY

PAGES = ("/admin/login/", "/healthz", "/api/openapi.json", "/api/jobs", "/metrics", "/nowhere")


@pytest.mark.django_db
@pytest.mark.parametrize("path", PAGES)
def test_pages_load_nothing_from_elsewhere_and_are_in_no_frame(path: str) -> None:
    response = Client().get(path)
    policy = dict(part.strip().split(" ", 1) for part in response["Content-Security-Policy"].split(";"))
    assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'none'")
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
    assert "camera=()" in response["Permissions-Policy"]


@pytest.mark.django_db
def test_the_pages_of_debug_keep_their_style(settings: Any) -> None:
    settings.DEBUG = True
    assert "Content-Security-Policy" not in Client().get("/nowhere")
    assert Client().get("/admin/login/")["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
