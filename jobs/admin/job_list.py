"""The job list: what each row shows beside its columns, looked up for the whole page at once."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.admin import ModelAdmin
from django.db.models import F, Func, IntegerField
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import census, db, explain
from jobs.admin.console import screen
from jobs.admin.filters import of_status
from jobs.admin.marks import ICONS, badge, roughly, when
from jobs.admin.paginator import capped_count
from jobs.admin.reading import LeanChangeList, may_view_payload
from jobs.admin.showing import first_line, grouped, isolated, list_url, one_line, reason_of
from jobs.engine.recovery import CRASHED, EXPIRED
from jobs.models import ConcurrencyLimit, Gate, Job, JobRun
from jobs.models.job import STATUS_LABELS
from jobs.states import TERMINAL, Status
from jobs.thrift import Kept

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

SMALL = 2000  # bytes of params that a list still reads


class StoredSize(Func):
    """Of a JSON column, without reading what is in it."""

    function = "pg_column_size"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return super().as_sql(compiler, connection, function="length", **context)


class JobChangeList(LeanChangeList):
    """Its rows know their params (`brief`), why they wait (`why`) and whether they follow one whose worker died."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        jobs = list(self.result_list)
        params = _params(jobs) if may_view_payload(request) else {}
        whys, rescued = explain.brief(jobs), _rescued(jobs)
        for job in jobs:
            job.is_rescued = job.retry_of_id in rescued
            job.brief = params.get(job.pk, "")
            job.why = whys.get(job.pk, "")
        self.result_list = jobs


def _params(jobs: list[Job]) -> dict[UUID, str]:
    """In one line. Large ones are not read, and none is cut before its secrets are masked."""
    rows = Job.objects.filter(pk__in=[job.pk for job in jobs]).order_by()
    small = rows.annotate(size=StoredSize(F("params"))).filter(size__lte=SMALL)
    found = {pk: first_line(one_line(params), 80) for pk, params in small.values_list("pk", "params")}
    return {job.pk: found.get(job.pk, _("(long params)")) for job in jobs}


def _rescued(jobs: list[Job]) -> set[Any]:
    """Those of their predecessors that a worker left behind."""
    before = [job.retry_of_id for job in jobs if job.retry_of_id is not None]
    if not before:
        return set()
    died = Job.objects.filter(pk__in=before, status_reason__in=(EXPIRED, CRASHED))
    return set(died.order_by().values_list("pk", flat=True))


def work(job: Job) -> SafeString:
    """The job type, and under it the params of those who may see them."""
    brief = getattr(job, "brief", "")
    if brief in ("", "{}"):
        return isolated(job.job_type)
    return format_html('<bdi>{}</bdi><samp class="jc-line jc-small jc-muted"><bdi>{}</bdi></samp>', job.job_type, brief)


def state(job: Job, now: datetime) -> SafeString:
    """The badge, marks, and under them why it waits or what it came to."""
    tries = f"{job.attempt}/{job.max_retries + 1}" if job.attempt > 1 else ""
    marks = format_html_join("", ' <span class="jc-mark">{}</span>', ((each,) for each in _marks(job, now)))
    kind = "jc-error" if job.status == Status.FAILED else "jc-muted"
    told = getattr(job, "why", "") or first_line(reason_of(job))
    under = format_html('<span class="jc-line jc-small {}"><bdi>{}</bdi></span>', kind, told) if told else ""
    return format_html("{}{}{}", badge(job.status, tries), marks, under)


def _marks(job: Job, now: datetime) -> list[str]:
    return [
        word
        for word, is_so in (
            (_("stuck"), job.lease_expires_at is not None and job.lease_expires_at < now),
            (_("rescued"), getattr(job, "is_rescued", False)),
            (_("blocks its target"), job.blocks_target),
            (_("asked to stop"), job.cancel_requested and not job.is_terminal),
            (_("resolved"), job.resolved_at is not None),
            (_("by schedule"), job.schedule_id is not None),
            (_("in a group"), job.group_id is not None),
        )
        if is_so
    ]


def moment(job: Job, now: datetime) -> SafeString | None:
    """What time means depends on the state: due in, running for, finished ago."""
    run: JobRun | None = getattr(job, "run", None)
    if run is not None and run.finished_at is not None:
        return when(run.finished_at, now)
    if job.status == Status.RUNNING and run is not None:
        exact = formats.date_format(timezone.localtime(run.started_at), "Y-m-d H:i:s T")
        return format_html('<span title="{}">{}</span>', exact, _("running for %s") % roughly(now - run.started_at))
    if job.gate == Gate.TIME and job.not_before is not None and job.not_before > now:
        return format_html("{} {}", _("due"), when(job.not_before, now) or "")
    return when(job.created_at, now)


def tabs(admin: ModelAdmin, request: HttpRequest) -> list[dict[str, Any]]:
    """A link for each status, with everything first; all other filters are dropped."""
    url, chosen = list_url(admin.admin_site, Job), request.GET.get("status", "")
    every = {"name": "", "title": _("All"), "icon": "", "url": url, "is_current": not request.GET.get("status")}
    return [
        every,
        *(
            {
                "name": str(status),
                "title": label,
                "icon": ICONS[status],
                "url": f"{url}?status={status}",
                "is_current": chosen == status,
            }
            for status, label in STATUS_LABELS.items()
        ),
    ]


def paused() -> list[ConcurrencyLimit]:
    """What an operator has paused, for the banner above every list of jobs."""
    return list(ConcurrencyLimit.objects.filter(paused=True).order_by("scope", "key")[:10])


@screen("counts", gettext_lazy("Counts"), listed=False)
def counts(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """What the tabs show: live states are exact, of ended ones what their lists count, up to 10,000 and "+"."""
    found = {**census.take().statuses(), **_ended()}
    return JsonResponse({status: grouped(count) for status, count in found.items()})


_kept: Kept[dict[str, int]] = Kept()


def _ended() -> dict[str, int]:
    return _kept.get(db.alias(), _count_ended, lambda found: sum(map(int, found.values())))


def _count_ended() -> dict[str, int]:
    jobs = Job.objects.all()
    return {str(status): capped_count(of_status(jobs, status)) for status in sorted(TERMINAL)}
