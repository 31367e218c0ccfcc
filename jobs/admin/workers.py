"""Workers: heartbeats, the jobs they run, slots and filters; the actions Drain, Resume and Stop; polling addons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, Max, OuterRef, Q, Subquery
from django.db.models.functions import Now
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy, pgettext_lazy

from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.columns import column, computed_column, label_on_phone, link
from jobs.admin.filters import ChoiceFilter
from jobs.admin.formatting import (
    badge,
    format_age,
    format_duration,
    format_relative_time,
    format_whole_percent,
    isolate_text,
)
from jobs.admin.object_actions import ObjectAction, ObjectActionAdmin, call_with_key
from jobs.admin.screens import APP, latest_event_id
from jobs.models import Activity, Job, Worker, WorkerState
from jobs.models.worker import heartbeat_timeout
from jobs.services import workers
from jobs.stats import queries
from jobs.stats.ready_jobs import is_online

JOBS_READ = 1000
JOBS_SHOWN = 3  # in a row of the list
NAMES_SHOWN = 5  # job types and resources in a row of the list
STOP = f"{APP}.stop_worker"
STATE_BADGES = {
    WorkerState.RUNNING: ("good", "✓"),
    WorkerState.QUIET: ("warn", "‖"),
    WorkerState.STOPPING: ("warn", "→"),
    WorkerState.STOPPED: ("plain", "○"),
}


def describe_state(worker: Worker) -> tuple[str, SafeString]:
    """Return the colour and the badge of the state: of the requested one, and of a silent worker “No heartbeat”."""
    state = WorkerState(worker.state)
    if state != WorkerState.STOPPED and not is_online(worker, timezone.now()):
        return "bad", badge("bad", _now("No heartbeat"), "✗")
    if worker.request and state not in (WorkerState.STOPPING, WorkerState.STOPPED):
        state = WorkerState(worker.request)
    kind, icon = STATE_BADGES[state]
    return kind, badge(kind, str(state.label), icon)


def find_running_jobs(shown_workers: Iterable[Worker]) -> dict[Any, list[Job]]:
    """Return the jobs that each worker runs, the oldest first, in one query along the index of active jobs."""
    worker_ids = {}
    for row in shown_workers:
        if row.state != WorkerState.STOPPED:
            worker_ids[row.identity.process_key] = row.pk
    if not worker_ids:
        return {}
    active = Job.objects.active().running()
    columns = ("id", "job_type", "lease_owner", "target", "progress", "run__started_at", "run__job_id")
    rows = active.select_related("run").only(*columns).order_by()[:JOBS_READ]
    running: dict[Any, list[Job]] = defaultdict(list)
    for job in sorted(rows, key=lambda job: job.pk):  # an ORDER BY would make the planner scan all jobs by id
        if (worker_id := worker_ids.get((job.lease_owner or "").rpartition("#")[0])) is not None:
            running[worker_id].append(job)
    return running


def _accepts_requests(worker: Worker) -> bool:
    return workers.is_alive(worker) and WorkerState.STOPPING not in (worker.request, worker.state)


class StateFilter(ChoiceFilter):
    """Filters by the state that the list shows: a worker without heartbeats is not online."""

    title = _("state")
    parameter_name = field = "state"
    known_choices = WorkerState.choices

    def filter_by_choice(self, queryset: Any, value: str) -> Any:
        found = super().filter_by_choice(queryset, value)
        return found.filter(heartbeat_at__gt=Now() - heartbeat_timeout()) if value == WorkerState.RUNNING else found


class PresentFilter(ChoiceFilter):
    title = _("online")
    parameter_name = "present"
    known_choices = (("1", _("Yes")), ("0", _("No heartbeat")))

    def filter_by_choice(self, queryset: Any, value: str) -> Any:
        shown = queries.online_workers()
        if value == "0":
            shown = shown.filter(heartbeat_at__lte=Now() - heartbeat_timeout())
        return queryset.filter(pk__in=shown.values("pk"))


class WorkerAdmin(ObjectActionAdmin, ReadOnlyAdmin):
    empty_text = _("No worker has ever started. Start one with “manage.py worker”, and jobs begin to run.")
    object_actions = (
        ObjectAction(
            "quiet",
            pgettext_lazy("verb", "Drain"),
            _("Drain selected workers (finish running jobs, take no new ones)"),
            ngettext_lazy("%(count)d worker is draining", "%(count)d workers are draining", "count"),
            STOP,
            call_with_key(workers.quiet),
            lambda worker: _accepts_requests(worker) and worker.request != WorkerState.QUIET,
            title=_("Finish the running jobs and take no new ones, until Resume"),
        ),
        ObjectAction(
            "wake",
            pgettext_lazy("verb", "Resume"),
            _("Resume selected workers"),
            ngettext_lazy("%(count)d worker resumed", "%(count)d workers resumed", "count"),
            STOP,
            call_with_key(workers.wake),
            lambda worker: _accepts_requests(worker) and worker.request == WorkerState.QUIET,
            title=_("Take new jobs again"),
        ),
        ObjectAction(
            "stop",
            pgettext_lazy("verb", "Stop"),
            _("Stop selected workers"),
            ngettext_lazy("%(count)d worker is stopping", "%(count)d workers are stopping", "count"),
            STOP,
            call_with_key(workers.stop),
            _accepts_requests,
            needs_confirmation=True,
            title=_("End the process; jobs that do not finish in time return to the queue"),
        ),
    )
    list_display = (
        *("shown_name", "shown_state", "last_heartbeat", "slots_in_use"),
        *("current_jobs", "brief_serves", "shown_version"),
    )
    list_filter = (StateFilter, PresentFilter)
    ordering = (ExpressionWrapper(Q(state=WorkerState.STOPPED), BooleanField()).asc(), "-pk")
    change_form_template = "jobs/facts_page.html"
    name_field = "name"
    qualifiers = {"host": "host", "version": "version"}
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("shown_state", "last_heartbeat", "slots_in_use", "handled_types", "handled_resources"),
                    *("handled_tenant", "host", "pid", "shown_version", "started", "stopped", "id"),
                )
            },
        ),
    )

    started = column(_("started"), "started_at", format_relative_time)
    stopped = column(_("stopped"), "stopped_at", format_relative_time)
    handled_types = computed_column(_("job types"))(
        lambda admin, worker: isolate_text(_join_names(worker.serves.get("types") or [], None))
    )
    handled_resources = computed_column(_("resources"))(lambda admin, worker: isolate_text(_list_resources(worker)))
    handled_tenant = computed_column(_("tenant"))(lambda admin, worker: worker.serves.get("tenant") or _now("all"))

    def list_version(self) -> str:
        """Combine job events with the latest heartbeat, request and stop of any worker."""
        last = Worker.objects.aggregate(Max("heartbeat_at"), Max("requested_at"), Max("stopped_at"))
        return " ".join([latest_event_id(), *map(str, last.values())])

    def page_version(self, request: HttpRequest, row: Worker) -> str:
        return f"{latest_event_id()} {row.heartbeat_at} {row.request} {row.state} {row.busy}"

    def complete_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        running, rows = find_running_jobs(rows), list(rows)
        reasons = _find_request_reasons(rows)
        for worker in rows:
            worker.request_note = reasons.get(str(worker.pk), "")
        versions = {worker.version for worker in rows if worker.state != WorkerState.STOPPED}
        for worker in rows:
            worker.running_jobs = running.get(worker.pk, [])
            worker.is_mixed = len(versions) > 1

    def page_context(self, request: HttpRequest, row: Worker) -> dict[str, Any]:
        now = timezone.now()
        running = {
            "id": "worker-jobs",
            "title": _now("Running jobs"),
            "headings": [_now("Job"), _now("Type"), _now("Target"), _now("Progress"), _now("Running for")],
            "numbers": (3, 4),
            "rows": [
                (
                    link(self.admin_site, Job, job.pk),
                    isolate_text(job.job_type),
                    None if job.target is None else isolate_text(job.target),
                    None if job.progress is None else format_whole_percent(job.progress),
                    format_duration(now - job.run.started_at) if hasattr(job, "run") else None,
                )
                for job in find_running_jobs([row]).get(row.pk, [])
            ],
            "empty": _now("No running jobs."),
        }
        return {"title": _now("Worker %s") % row.name, "subtitle": None, "tables": [running]}

    @computed_column(_("worker"))
    def shown_name(self, worker: Worker) -> SafeString:
        process = format_html('<span class="jc-small jc-muted"><bdi>{}:{}</bdi></span>', worker.host, worker.pid)
        return format_html("<bdi>{}</bdi><br>{}", worker.name, process)

    @computed_column(_("state"))
    def shown_state(self, worker: Worker) -> SafeString:
        """Show the state; of a draining or stopping worker since when, by whom and why."""
        _kind, shown = describe_state(worker)
        if not worker.request or worker.state == WorkerState.STOPPED:
            return shown
        age = format_age(timezone.now() - worker.requested_at) if worker.requested_at else ""
        why: str | None = getattr(worker, "request_note", None)
        if why is None:
            why = _find_request_reasons([worker]).get(str(worker.pk), "")
        lines = [_now("requested %s") % age, why]
        if worker.request != worker.state:
            lines.insert(1, _now("at its next heartbeat"))
        note = " · ".join(line for line in lines if line)
        return format_html('{}<span class="jc-note jc-small jc-muted"><bdi>{}</bdi></span>', shown, note)

    @computed_column(_("last heartbeat"))
    def last_heartbeat(self, worker: Worker) -> SafeString | str:
        """Show the age of the last heartbeat: green up to half of the timeout, amber up to it, red beyond."""
        if worker.state == WorkerState.STOPPED:
            return format_relative_time(worker.stopped_at) or "–"
        age = timezone.now() - worker.heartbeat_at
        share = age / heartbeat_timeout()
        kind, icon = ("good", "✓") if share <= 0.5 else ("warn", "!") if share <= 1 else ("bad", "✗")
        return badge(kind, format_age(age), icon)

    @computed_column(_("busy"))
    def slots_in_use(self, worker: Worker) -> SafeString:
        stuck = " " + _now("(%d stuck)") % worker.stuck if worker.stuck else ""
        second_line = ""
        if worker.rss_bytes is not None and worker.cpu_percent is not None and worker.state != WorkerState.STOPPED:
            usage = f"{filesizeformat(worker.rss_bytes)}, {worker.cpu_percent:.0f} %"  # at its last heartbeat
            second_line = format_html('<span class="jc-line jc-small jc-muted">{}</span>', usage)
        slots = format_html("{}/{}{}{}", worker.busy, worker.slots, stuck, second_line)
        return label_on_phone(_now("slots"), slots)

    @computed_column(_("running jobs"))
    def current_jobs(self, worker: Worker) -> SafeString | None:
        jobs, now = getattr(worker, "running_jobs", []), timezone.now()
        if not jobs:
            return None
        lines = [
            (link(self.admin_site, Job, job.pk, job.job_type), format_duration(now - job.run.started_at))
            for job in jobs[:JOBS_SHOWN]
            if hasattr(job, "run")
        ]
        hidden = len(jobs) - JOBS_SHOWN
        rest = ngettext("and %d more", "and %d more", hidden) % hidden if hidden > 0 else ""
        return format_html("{} {}", format_html_join(", ", "{} {}", lines), rest)

    @computed_column(_("handles"))
    def brief_serves(self, worker: Worker) -> SafeString | None:
        """Show the job types that the worker runs, and its filters by resource and tenant."""
        serves = worker.serves if isinstance(worker.serves, dict) else {}
        types, tenant = serves.get("types"), serves.get("tenant")
        parts = [_join_names(types, NAMES_SHOWN)] if isinstance(types, list) else []
        parts += (
            [_list_resources(worker, NAMES_SHOWN)]
            if serves.get("resources") or serves.get("excluded_resources")
            else []
        )
        parts += [_now("tenant %s") % tenant] if tenant else []
        return isolate_text("; ".join(parts)) if parts else None

    @computed_column(_("version"))
    def shown_version(self, worker: Worker) -> SafeString | None:
        if not worker.version:
            return None
        if not getattr(worker, "is_mixed", False):
            return isolate_text(worker.version)
        return format_html("{} {}", isolate_text(worker.version), badge("warn", _now("mixed"), "!"))


def _list_resources(worker: Worker, limit: int | None = None) -> str:
    """Return the resources whose jobs a worker runs, up to `limit` names."""
    resources, excluded = worker.serves.get("resources"), worker.serves.get("excluded_resources") or []
    if resources is not None:
        return _join_names([name for name in resources if name not in excluded], limit)
    return _now("all but %s") % _join_names(excluded, limit) if excluded else _now("all")


def _join_names(names: list[Any], limit: int | None) -> str:
    hidden = len(names) - len(names[:limit])
    rest = [ngettext("%d more", "%d more", hidden) % hidden] if hidden else []
    return ", ".join([*map(str, names[:limit]), *rest])


def _find_request_reasons(rows: Iterable[Worker]) -> dict[str, str]:
    """Return the actor and the reason of each worker's request to drain or stop: its last activity, in one query."""
    pks = [str(row.pk) for row in rows if row.request and row.state != WorkerState.STOPPED]
    if not pks:
        return {}
    requests = Activity.objects.filter(object_kind="worker", object_id=OuterRef("object_id"))
    last = requests.order_by("-pk").values("pk")[:1]
    rows_of_workers = Activity.objects.filter(object_kind="worker", object_id__in=pks, pk=Subquery(last))
    found = rows_of_workers.order_by().values_list("object_id", "actor_name", "reason")
    return {pk: ": ".join(text for text in (actor, reason) if text) for pk, actor, reason in found}


class PollerAdmin(ReadOnlyAdmin):
    list_display = ("shown_addon", "tenant", "most", "last_poll")
    change_form_template = "jobs/facts_page.html"
    name_field = "addon_id"
    fieldsets = ((None, {"fields": ("shown_addon", "tenant", "most", "last_poll")}),)

    last_poll = column(_("last poll"), "polled_at", format_relative_time)
    shown_addon = column(_("addon"), "addon_id", lambda addon: isolate_text(addon) if addon else _now("all"))
