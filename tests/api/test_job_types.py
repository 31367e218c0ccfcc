"""Job types over HTTP: what can be submitted, and how."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.registry import registry
from tests.sample_app import job_types
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db


def list_types() -> dict[str, dict[str, Any]]:
    return {handler["name"]: handler for handler in ApiClient("read").list_all("/job-types", 10)}


def test_every_registered_type_is_listed_by_name() -> None:
    assert list(list_types()) == registry.names()


def test_a_type_says_what_it_takes() -> None:
    note = list_types()[job_types.note.name]
    assert note["params_schema"]["properties"]["text"] == {"title": "Text", "type": "string"}
    assert note["params_schema"]["required"] == ["text"]
    assert (note["resource"], note["remote"], note["max_retries"], note["doc"]) == ("default", False, 3, "")
    attic = list_types()[job_types.nothing.name]
    assert (attic["resource"], attic["max_retries"]) == ("attic", 1)


def test_every_shape_has_exactly_the_fields_of_the_contract() -> None:
    for item in list_types().values():
        assert set(item) == {"name", "params_schema", "resource", "remote", "max_retries", "doc"}


def test_it_takes_read() -> None:
    assert ApiClient("submit", "operate", "work").get("/job-types").status_code == 403
