"""JSON lines of a worker, as the source documents require them."""

from __future__ import annotations

import json

from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status, wait_until


def test_145_lines_have_the_worker_and_those_of_handlers_their_job(fleet: Fleet) -> None:
    worker = fleet.start("--log-format=json", "--name=json", settings=LONG_LEASE_SETTINGS, wait=False)
    job = job_services.enqueue("sample.talk", {"lines": 1})
    wait_for_status(job.pk, Status.COMPLETED, fleet=fleet)
    wait_until(lambda: "finished" in worker.output, what=lambda: worker.output)
    records = [json.loads(line) for line in worker.output.splitlines()]
    assert {record["worker"] for record in records} == {"json"}
    own = [record for record in records if record.get("job_id") == str(job.pk)]
    assert {record["job_type"] for record in own} == {"sample.talk"}
    assert {record["logger"] for record in own} >= {"jobs.run", "tests.sample_app"}
