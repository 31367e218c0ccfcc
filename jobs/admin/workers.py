"""Workers: heartbeats, the jobs they run, slots and filters; the actions Quiet, Wake and Stop; polling addons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db.models import Max, QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy, pgettext_lazy

from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.columns import column, computed_column, link
from jobs.admin.filters import ChoiceFilter, choice_filter
from jobs.admin.formatting import (
    badge,
    format_age,
    format_relative_time,
    format_rough_duration,
    isolate_text,
    json_block,
)
from jobs.admin.object_actions import ObjectAction, ObjectActionAdmin, call_with_key
from jobs.admin.screens import APP, latest_event_id
from jobs.conf import conf
from jobs.models import Job, Worker, WorkerState
from jobs.models.expressions import sql_literals
from jobs.process_identity import ProcessIdentity
from jobs.services import workers
from jobs.states import Status
from jobs.stats import queries

JOBS_READ = 1000
JOBS_SHOWN = 3  # in a row of the list
STOP = f"{APP}.stop_worker"


def find_running_jobs(shown_workers: Iterable[Worker]) -> dict[Any, list[Job]]:
    """Return the jobs that each worker runs, the oldest first, in one query along the index of active jobs."""
    worker_ids = {}
    for row in shown_workers:
        if row.state != WorkerState.STOPPED:
            identity = ProcessIdentity(row.name, row.host, row.boot_id, row.pid_namespace, row.pid, row.pid_started)
            worker_ids[identity.process_key] = row.pk
    if not worker_ids:
        return {}
    active = Job.objects.filter(status__in=sql_literals(queries.ACTIVE_STATUSES), status=Status.RUNNING)
    columns = ("id", "job_type", "lease_owner", "target", "progress", "run__started_at", "run__job_id")
    rows = active.select_related("run").only(*columns).order_by()[:JOBS_READ]
    running: dict[Any, list[Job]] = defaultdict(list)
    for job in sorted(rows, key=lambda job: job.pk):  # an ORDER BY would make the planner scan all jobs by id
        if (worker_id := worker_ids.get((job.lease_owner or "").rpartition("#")[0])) is not None:
            running[worker_id].append(job)
    return running


def _accepts_requests(worker: Worker) -> bool:
    return workers.is_alive(worker) and WorkerState.STOPPING not in (worker.request, worker.state)


class PresentFilter(ChoiceFilter):
    title = _("present")
    parameter_name = "present"
    known_choices = (("1", _("Yes")),)

    def filter_by_choice(self, queryset: Any, value: str) -> Any:
        return queryset.filter(pk__in=queries.online_workers().values("pk"))


class WorkerAdmin(ObjectActionAdmin, ReadOnlyAdmin):
    empty_text = _("No worker has ever started. Start one with “manage.py worker”, and jobs begin to run.")
    object_actions = (
        ObjectAction(
            "quiet",
            pgettext_lazy("verb", "Quiet"),
            _("Quiet selected workers: they finish, and take no more"),
            ngettext_lazy("%(count)d worker asked to be quiet", "%(count)d workers asked to be quiet", "count"),
            STOP,
            call_with_key(workers.quiet),
            lambda worker: _accepts_requests(worker) and worker.request != WorkerState.QUIET,
        ),
        ObjectAction(
            "wake",
            pgettext_lazy("verb", "Wake"),
            _("Wake selected quiet workers"),
            ngettext_lazy("%(count)d worker asked to go on", "%(count)d workers asked to go on", "count"),
            STOP,
            call_with_key(workers.wake),
            lambda worker: _accepts_requests(worker) and worker.request == WorkerState.QUIET,
        ),
        ObjectAction(
            "stop",
            pgettext_lazy("verb", "Stop"),
            _("Stop selected workers"),
            ngettext_lazy("%(count)d worker asked to stop", "%(count)d workers asked to stop", "count"),
            STOP,
            call_with_key(workers.stop),
            _accepts_requests,
            needs_confirmation=True,
        ),
    )
    list_display = (
        *("shown_name", "shown_state", "last_heartbeat", "slots_in_use"),
        *("current_jobs", "brief_serves", "shown_version"),
    )
    list_filter = (choice_filter("state", _("state"), WorkerState.choices), PresentFilter)
    name_field = "name"
    qualifiers = {"host": "host", "version": "version"}
    fieldsets = (
        (None, {"fields": ("id", "shown_name", "host", "pid", "shown_version", "shown_serves")}),
        (_("State"), {"fields": ("shown_state", "slots_in_use", "stuck")}),
        (_("When"), {"fields": ("started_at", "last_heartbeat", "heartbeat_at", "stopped_at")}),
    )

    shown_serves = column(_("serves"), "serves", lambda value: json_block(value or None))

    def list_version(self) -> str:
        """Combine job events with the latest heartbeat, request and stop of any worker."""
        last = Worker.objects.aggregate(Max("heartbeat_at"), Max("requested_at"), Max("stopped_at"))
        return " ".join([latest_event_id(), *map(str, last.values())])

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        running = find_running_jobs(rows)
        versions = {worker.version for worker in rows if worker.state != WorkerState.STOPPED}
        for worker in rows:
            worker.running_jobs = running.get(worker.pk, [])
            worker.is_mixed = len(versions) > 1

    def page_context(self, request: HttpRequest, row: Worker) -> dict[str, Any]:
        now = timezone.now()
        running = {
            "id": "worker-jobs",
            "title": _now("In hand"),
            "headings": [_now("Job"), _now("Type"), _now("Target"), _now("Progress"), _now("Running for")],
            "rows": [
                (
                    link(self.admin_site, Job, job.pk),
                    isolate_text(job.job_type),
                    None if job.target is None else isolate_text(job.target),
                    None if job.progress is None else f"{job.progress:.0%}",
                    format_rough_duration(now - job.run.started_at) if hasattr(job, "run") else None,
                )
                for job in find_running_jobs([row]).get(row.pk, [])
            ],
            "empty": _now("Nothing at the moment."),
        }
        return {"tables": [running]}

    @computed_column(_("worker"))
    def shown_name(self, worker: Worker) -> SafeString:
        process = format_html('<span class="jc-small jc-muted"><bdi>{}:{}</bdi></span>', worker.host, worker.pid)
        return format_html("<bdi>{}</bdi><br>{}", worker.name, process)

    @computed_column(_("state"))
    def shown_state(self, worker: Worker) -> SafeString:
        """Show the state that the worker reports, and the one that an operator requested."""
        state = format_html("{}", worker.get_state_display())
        if not worker.request or worker.request == worker.state or worker.state == WorkerState.STOPPED:
            return state
        age = format_age(timezone.now() - worker.requested_at) if worker.requested_at else ""
        request = _now("asked to become: %s") % worker.get_request_display()
        return format_html('{}<br><span class="jc-mark">{} {}</span>', state, request, age)

    @computed_column(_("heard"))
    def last_heartbeat(self, worker: Worker) -> SafeString | str:
        """Show the age of the last heartbeat: green up to half a lease, amber up to a lease, red beyond."""
        if worker.state == WorkerState.STOPPED:
            return format_relative_time(worker.stopped_at) or "-"
        age = timezone.now() - worker.heartbeat_at
        leases = age.total_seconds() / conf.LEASE_SEC
        kind, icon = ("good", "✓") if leases <= 0.5 else ("warn", "!") if leases <= 1 else ("bad", "✗")
        return badge(kind, format_age(age), icon)

    @computed_column(_("busy"))
    def slots_in_use(self, worker: Worker) -> SafeString:
        stuck = " " + _now("(%d stuck)") % worker.stuck if worker.stuck else ""
        second_line = ""
        if worker.rss_bytes is not None and worker.cpu_percent is not None and worker.state != WorkerState.STOPPED:
            usage = f"{filesizeformat(worker.rss_bytes)}, {worker.cpu_percent:.0f} %"  # at its last heartbeat
            second_line = format_html('<span class="jc-line jc-small jc-muted">{}</span>', usage)
        return format_html("{}/{}{}{}", worker.busy, worker.slots, stuck, second_line)

    @computed_column(_("in hand"))
    def current_jobs(self, worker: Worker) -> SafeString | None:
        jobs, now = getattr(worker, "running_jobs", []), timezone.now()
        if not jobs:
            return None
        lines = [
            (link(self.admin_site, Job, job.pk, job.job_type), format_rough_duration(now - job.run.started_at))
            for job in jobs[:JOBS_SHOWN]
            if hasattr(job, "run")
        ]
        hidden = len(jobs) - JOBS_SHOWN
        rest = ngettext("and %d more", "and %d more", hidden) % hidden if hidden > 0 else ""
        return format_html("{} {}", format_html_join(", ", "{} {}", lines), rest)

    @computed_column(_("serves"))
    def brief_serves(self, worker: Worker) -> SafeString | None:
        """Show how many job types the worker serves, and its filters by resource and tenant."""
        serves = worker.serves if isinstance(worker.serves, dict) else {}
        types, resources, tenant = serves.get("types"), serves.get("resources"), serves.get("tenant")
        parts = [ngettext("%d job type", "%d job types", len(types)) % len(types)] if isinstance(types, list) else []
        parts += [", ".join(map(str, resources))] if isinstance(resources, list) else []
        parts += [_now("tenant %s") % tenant] if tenant else []
        return isolate_text("; ".join(parts)) if parts else None

    @computed_column(_("version"))
    def shown_version(self, worker: Worker) -> SafeString | None:
        if not worker.version:
            return None
        if not getattr(worker, "is_mixed", False):
            return isolate_text(worker.version)
        return format_html("{} {}", isolate_text(worker.version), badge("warn", _now("mixed"), "!"))


class PollerAdmin(ReadOnlyAdmin):
    list_display = ("shown_addon", "tenant", "most", "polled_at")
    name_field = "addon_id"
    fieldsets = ((None, {"fields": ("id", "shown_addon", "tenant", "most", "polled_at")}),)

    shown_addon = column(_("addon"), "addon_id", lambda addon: isolate_text(addon) if addon else _now("all"))
