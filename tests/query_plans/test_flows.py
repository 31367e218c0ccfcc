"""The heads of flows are found along the index by flow, also by a plan that was made while no job was ready."""

from __future__ import annotations

import pytest
from django.db import connection

from bench import bulk_insert
from jobs.db import prefer_indexes
from jobs.engine.sql.candidates import Filter, find_across_flows
from tests.query_plans.explain import JOB_TABLE, execute, explain_prepared, list_indexes, record_statements

FLOWS = 3000


@pytest.mark.pg_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("remote", "index"), [(False, "job_ready"), (True, "job_offerable_flow")])
def test_the_heads_of_flows_are_found_along_their_index_after_an_analyze_of_no_ready_job(
    remote: bool, index: str
) -> None:
    """With another index, a statement for 10,000 flows took 40 s: their jobs were sorted for each of them."""
    columns = {"flow_id": "n", "remote": str(remote).lower(), "addon_id": "'visuals'"}
    bulk_insert.insert_jobs(connection, "plans.one", FLOWS, **columns)
    execute(f"UPDATE {JOB_TABLE} SET gate = 1, recheck_at = now()")
    execute("ANALYZE")
    prefer_indexes()
    (heads,) = record_statements(lambda: find_across_flows(connection, 4, Filter(), remote=remote, flows=500, turns=4))
    assert list_indexes(explain_prepared(heads)) == {index}
