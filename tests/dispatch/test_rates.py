"""Rates of limits: claims, offers and direct calls take from one bucket, and tokens are settled however a job ends.

The time that passes is written into the row: the bucket's last change is moved back.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import F

from jobs import db, direct
from jobs.actors import PYTHON
from jobs.engine import finish as ending
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.selection import SelectionRound
from jobs.engine.selection.limits import sync_limits
from jobs.engine.sql.claim import LeaseRequest, claim_chosen
from jobs.errors import NoSlot
from jobs.models import ConcurrencyLimit, Job, TokenSpend
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.services import limits
from jobs.states import CRASH_RECOVERY_REASON, Cause
from tests.support import executor
from tests.support.remote_client import ADDON, RemoteClient

pytestmark = pytest.mark.django_db
TYPE = "sample.noop"


@pytest.fixture(autouse=True)
def unlimited(settings: Any) -> None:
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "LIMITS": {"global": None}}
    sync_limits()


def submit(count: int = 1, job_type: str = TYPE, **fields: Any) -> list[Job]:
    return [job_services.enqueue(job_type, **fields) for _ in range(count)]


def make_claimer(**served: Any) -> Claimer:
    return Claimer("rates", ServedJobs(tuple(registry.local_names()), **served))


def claim(slots: int = 8, claimer: Claimer | None = None) -> int:
    first = Job.objects.running().count()
    return len((claimer or make_claimer()).claim(range(first, first + slots), lease_sec=30))


def pass_time(seconds: float) -> None:
    ConcurrencyLimit.objects.exclude(bucket_at=None).update(bucket_at=F("bucket_at") - timedelta(seconds=seconds))


def get_limit(key: str = "default") -> ConcurrencyLimit:
    limit: ConcurrencyLimit = ConcurrencyLimit.objects.get(scope="resource", key=key)
    return limit


@pytest.mark.parametrize(
    ("scope", "key"),
    [("global", ""), ("job_type", TYPE), ("resource", "default"), ("tenant", "default"), ("addon", "books")],
)
def test_a_rate_of_any_scope_spreads_the_starts(scope: str, key: str) -> None:
    limits.set_rates(scope, key, rate="6/min", burst=2)
    submit(9, addon_id="books")
    assert [claim(), claim()] == [2, 0]
    pass_time(10)
    assert claim() == 1
    pass_time(3600)  # a pause saves up one burst
    assert [claim(), claim()] == [2, 0]


def test_without_a_burst_jobs_start_one_by_one() -> None:
    limits.set_rates("resource", "default", rate="6/min")
    submit(3)
    assert [claim(), claim()] == [1, 0]


def test_a_rate_and_a_maximum_hold_together() -> None:
    limits.put({"scope": "resource", "key": "default", "max": 2, "rate": "60/min", "burst": 5})
    submit(9)
    assert [claim(), claim()] == [2, 0]
    assert get_limit().rate_level == pytest.approx(3, abs=0.9)


def test_a_rate_of_one_resource_delays_no_other() -> None:
    limits.set_rates("resource", "openai", rate="1/h")
    submit(5, resource="openai", priority=90)
    submit(2)
    assert claim() == 3
    assert claim() == 0


def test_jobs_of_another_resource_start_beside_a_rate_that_is_used_up_for_each_tenant() -> None:
    limits.set_rates("tenant", "acme", rate="1/h")
    limits.set_rates("resource", "openai", rate="2/h", burst=2)
    submit(3, tenant="acme", resource="openai")
    submit(3, tenant="other", resource="openai")
    assert claim() == 2
    assert sorted(Job.objects.running().values_list("tenant", flat=True)) == ["acme", "other"]


def test_the_claim_knows_when_the_next_job_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.engine.claim.time.monotonic", lambda: 100.0)
    limits.set_rates("resource", "default", rate="6/min")
    submit(2)
    claimer = make_claimer()
    assert claim(1, claimer) == 1
    assert claim(1, claimer) == 0
    assert claimer.next_start_at == pytest.approx(110, abs=9)
    assert not claimer.is_saturated
    for elsewhere in (make_claimer(resources=("other",)), make_claimer(excluded_resources=("default",))):
        assert claim(1, elsewhere) == 0
        assert elsewhere.next_start_at is None
    pass_time(10)
    assert claim(1, claimer) == 1


def test_without_a_rate_the_next_claim_is_plain_again() -> None:
    limits.set_rates("resource", "default", rate="6/min")
    claimer = make_claimer()
    submit(3)
    assert claim(8, claimer) == 1
    assert not claimer.is_plain
    limits.reset("resource", "default")
    assert claim(1, claimer) == 1
    assert claimer.is_plain


def test_a_hand_back_refunds_no_start() -> None:
    limits.set_rates("resource", "default", rate="6/min")
    submit()
    job = executor.claim_next()
    assert job is not None
    assert job.lease_token is not None
    ending.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="shut down")
    assert claim() == 0


def test_a_clock_that_went_back_neither_blocks_nor_refills() -> None:
    limits.set_rates("resource", "default", rate="6/min")
    submit(3)
    assert claim() == 1
    pass_time(-3600)  # the bucket is of a time that the clock has yet to reach
    assert claim() == 0
    pass_time(10)
    assert claim() == 1


def test_offers_take_from_the_same_bucket() -> None:
    limits.set_rates("addon", ADDON, rate="6/min", burst=2)
    remote = RemoteClient()
    for _ in range(4):
        remote.submit()
    assert len(remote.poll()) == 2
    pass_time(10)
    assert len(remote.poll()) == 3


def test_direct_calls_take_from_the_same_bucket() -> None:
    limits.set_rates("resource", "default", rate="6/min")
    direct.run("sample.work", wait=0)
    with pytest.raises(NoSlot, match=r"The rate of .resource default. is used up"):
        direct.run("sample.work", wait=0)
    submit()
    assert claim() == 0
    pass_time(10)
    assert claim() == 1


@pytest.mark.django_db(transaction=True)
def test_a_direct_call_waits_for_the_next_start() -> None:
    limits.set_rates("resource", "default", rate="600/min")
    direct.run("sample.work", wait=0)
    direct.run("sample.work", wait=10)


def test_used_tokens_delay_the_next_start_until_they_are_paid_off() -> None:
    limits.set_rates("resource", "default", token_rate="600/min")
    submit(3)
    assert claim(1) == 1
    Job.objects.running().update(tokens_used=600)
    assert claim() == 0
    assert get_limit().token_level == pytest.approx(-590, abs=50)
    pass_time(60)
    assert claim() == 2  # any number, as none of them has a limit


def test_a_token_limit_is_reserved_at_the_start_and_settled_at_the_end() -> None:
    limits.set_rates("resource", "default", token_rate="600/min")
    submit(3, token_limit=1000)
    assert claim() == 1
    assert get_limit().token_level == pytest.approx(-990, abs=50)
    assert TokenSpend.objects.get().taken == 1000
    job = Job.objects.running().get()
    Job.objects.filter(pk=job.pk).update(tokens_used=300)
    assert claim() == 0
    assert get_limit().token_level == pytest.approx(-990, abs=50)  # what it uses was taken already
    executor.complete(job)
    assert claim() == 0
    assert get_limit().token_level == pytest.approx(-290, abs=50)
    assert not TokenSpend.objects.exists()
    pass_time(30)
    assert claim() == 1


@pytest.mark.parametrize("way", ["fail", "hand back", "pause"])
def test_nothing_stays_reserved_however_a_job_ends(way: str) -> None:
    limits.set_rates("resource", "default", token_rate="600/min")
    submit(1, token_limit=1000)
    job = executor.claim_next()
    assert job is not None
    assert job.lease_token is not None
    if way == "fail":
        executor.fail(job)
    elif way == "hand back":
        ending.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="shut down")
        Job.objects.filter(pk=job.pk).update(gate=2)  # others start meanwhile
    else:
        job_services.pause(job.pk, actor=PYTHON)
        ending.stop(job.pk, job.lease_token, actor=executor.WORKER)
    submit(2)
    assert claim(1) == 1
    assert list(TokenSpend.objects.values_list("pk", flat=True)) == list(
        Job.objects.running().values_list("pk", flat=True)
    )
    assert get_limit().token_level == pytest.approx(10, abs=1)


def test_what_a_deleted_job_took_stays_taken() -> None:
    limits.set_rates("resource", "default", token_rate="600/min")
    flow = {"tenant": "default", "job_type": TYPE, "resource": "default"}
    TokenSpend.objects.create(pk=uuid4(), **flow, reserved=1000, taken=1000)
    submit()
    assert claim() == 1
    assert get_limit().token_level == pytest.approx(10, abs=1)
    assert list(TokenSpend.objects.values_list("pk", flat=True)) == [Job.objects.get().pk]


def test_a_resumed_job_reserves_what_it_has_left() -> None:
    limits.set_rates("resource", "default", token_rate="600/min")
    submit(1, token_limit=1000)
    job = executor.claim_next()
    assert job is not None
    assert job.lease_token is not None
    Job.objects.update(tokens_used=400)
    ending.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="shut down")
    assert claim() == 0
    assert get_limit().token_level == pytest.approx(-390, abs=50)
    pass_time(40)
    assert claim() == 1
    spend = TokenSpend.objects.get()
    assert (spend.reserved, spend.taken, spend.used_before) == (600, 600, 400)


@pytest.mark.parametrize("token_limit", [None, 30])
def test_the_tokens_of_a_job_that_comes_back_during_a_claim_and_is_started_by_it_count_once(
    token_limit: int | None,
) -> None:
    """The claim read its spend while it ran; it has used more, and was handed back, when the claim chooses."""
    limits.set_rates("resource", "default", token_rate="6000/min")
    (first,) = submit(1, token_limit=token_limit)
    job = executor.claim(first)
    assert job.lease_token is not None
    Job.objects.update(tokens_used=7)
    pass_time(-60)  # nothing comes back meanwhile
    with db.atomic() as connection:
        selection = SelectionRound(connection, ServedJobs((TYPE,)).to_filter())
        Job.objects.update(tokens_used=12)
        ending.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="shut down")
        chosen = selection.choose(1)
        claims = claim_chosen(connection, chosen, LeaseRequest("rates", "rates", 30), [0])
        assert [claim.id for claim in claims] == [job.pk]
        selection.take_tokens(claims)
    assert get_limit().token_level == pytest.approx(100 - (token_limit or 7))
    job.refresh_from_db()
    executor.complete(job)
    pass_time(-60)
    assert claim() == 0
    assert get_limit().token_level == pytest.approx(100 - 12)


def test_a_job_whose_worker_was_lost_counts_as_having_used_its_reserve() -> None:
    limits.set_rates("resource", "default", token_rate="600/min")
    submit(1, token_limit=1000, max_retries=0)
    job = executor.claim_next()
    assert job is not None
    ending.expire(
        [job], cause=Cause.CRASH_RECOVERY, error=CRASH_RECOVERY_REASON, describe=lambda _: {}, retry_in=lambda _: None
    )
    submit()
    assert claim() == 0
    assert get_limit().token_level == pytest.approx(-990, abs=50)
    assert not TokenSpend.objects.exists()


def test_each_limit_of_a_job_counts_its_tokens() -> None:
    limits.set_rates("resource", "default", token_rate="600/min")
    limits.set_rates("tenant", "default", token_rate="1200/min")
    limits.set_rates("tenant", "other", token_rate="1200/min")
    submit(1, token_limit=1000)
    assert claim() == 1
    levels = dict(ConcurrencyLimit.objects.exclude(token_rate="").values_list("key", "token_level"))
    assert set(levels) == {"default", "other"}
    by_scope = {row.scope: row.token_level for row in ConcurrencyLimit.objects.filter(key="default")}
    assert by_scope == {"resource": pytest.approx(-990, abs=50), "tenant": pytest.approx(-980, abs=50)}
    assert levels["other"] is None


def test_tokens_of_direct_calls_count() -> None:
    limits.set_rates("resource", "default", token_rate="600/min")
    direct.run("sample.spend", {"tokens": 600}, wait=0)
    submit()
    assert claim() == 0
    assert get_limit().token_level == pytest.approx(-590, abs=50)
    assert not TokenSpend.objects.exists()


def test_without_a_token_rate_no_spend_is_written_or_kept() -> None:
    limits.set_rates("resource", "default", rate="600/min", burst=9, token_rate="600/min")
    submit(1, token_limit=1000)
    assert claim() == 1
    assert TokenSpend.objects.exists()
    limits.put({"scope": "resource", "key": "default", "token_rate": None})
    assert not TokenSpend.objects.exists()
    submit(1, token_limit=1000)
    assert claim() == 1
    assert not TokenSpend.objects.exists()


def test_rates_of_the_settings_are_kept_up_with_at_each_start_of_a_worker(settings: Any) -> None:
    openai = {"max": 8, "rate": "60/min", "token_rate": "900/s", "burst": 5}
    settings.JOBSCHEDULER = {"LIMITS": {"global": None, "resource": {"openai": openai}}}
    sync_limits()
    assert get_limit("openai").values._asdict() == openai
    settings.JOBSCHEDULER = {"LIMITS": {"global": None, "resource": {"openai": {"rate": "5/s"}}}}
    sync_limits()
    assert get_limit("openai").values == (None, "5/s", "", None)
    settings.JOBSCHEDULER = {"LIMITS": {"global": None}}
    sync_limits()
    assert not ConcurrencyLimit.objects.filter(scope="resource").exists()


def test_the_bucket_outlives_workers_and_a_new_rate_starts_full() -> None:
    limits.set_rates("resource", "default", rate="6/min", burst=3)
    submit(9)
    assert claim() == 3
    sync_limits()  # as a worker does when it starts
    limits.put({"scope": "resource", "key": "default", "burst": 5})
    assert claim() == 0
    limits.set_rates("resource", "default")
    limits.set_rates("resource", "default", rate="6/min", burst=2)
    assert claim() == 2
