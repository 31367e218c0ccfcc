"""Job types over HTTP: their names, params schemas and defaults."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.registry import registry
from tests.sample_app import job_types
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db


def list_job_types() -> dict[str, dict[str, Any]]:
    return {job_type["name"]: job_type for job_type in ApiClient("read").list_all("/job-types", 10)}


def test_every_registered_type_is_listed_by_name() -> None:
    assert list(list_job_types()) == registry.names()


def test_a_type_has_its_params_schema_and_defaults() -> None:
    note = list_job_types()[job_types.note.name]
    assert note["params_schema"]["properties"]["text"] == {"title": "Text", "type": "string"}
    assert note["params_schema"]["required"] == ["text"]
    assert (note["resource"], note["remote"], note["max_retries"], note["doc"]) == ("default", False, 3, "")
    nothing = list_job_types()[job_types.nothing.name]
    assert (nothing["resource"], nothing["max_retries"]) == ("attic", 1)


def test_every_job_type_has_exactly_the_fields_of_the_contract() -> None:
    for job_type in list_job_types().values():
        assert set(job_type) == {"name", "params_schema", "resource", "remote", "direct", "max_retries", "doc"}


def test_the_list_requires_the_scope_read() -> None:
    assert ApiClient("submit", "operate", "work").get("/job-types").status_code == 403
