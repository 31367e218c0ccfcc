"""The timeline of a job: its events as steps, and the time that it waited, ran and was paused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs.admin.formatting import ICONS, first_line, format_duration, format_initiator
from jobs.explain import Explanation
from jobs.models import Job, JobEvent, JobRun
from jobs.states import ADMITTED_REASON, DEFAULT_PAUSE_REASON, TERMINAL, EventKind, Status

EVENT_LABELS: dict[str, Promise] = {
    EventKind.SUBMITTED: pgettext_lazy("event", "Submitted"),
    EventKind.HELD: pgettext_lazy("event", "Held"),
    EventKind.RELEASED: pgettext_lazy("event", "Released"),
    EventKind.ADMITTED: pgettext_lazy("event", "Admitted"),
    EventKind.DENIED: pgettext_lazy("event", "Admission denied"),
    EventKind.DISPATCHING: pgettext_lazy("event", "Offered to a remote worker"),
    EventKind.WITHDRAWN: pgettext_lazy("event", "Offer withdrawn"),
    EventKind.RUNNING: pgettext_lazy("event", "Started"),
    EventKind.CANCEL_REQUESTED: pgettext_lazy("event", "Cancel requested"),
    EventKind.PAUSE_REQUESTED: pgettext_lazy("event", "Pause requested"),
    EventKind.PAUSED: pgettext_lazy("event", "Paused"),
    EventKind.RESUMED: pgettext_lazy("event", "Resumed"),
    EventKind.HANDED_BACK: pgettext_lazy("event", "Returned to queue"),
    EventKind.SNOOZED: pgettext_lazy("event", "Snoozed"),
    EventKind.COMPLETED: pgettext_lazy("event", "Completed"),
    EventKind.FAILED: pgettext_lazy("event", "Failed"),
    EventKind.SKIPPED: pgettext_lazy("event", "Skipped"),
    EventKind.CANCELLED: pgettext_lazy("event", "Cancelled"),
    EventKind.RETRY_CREATED: pgettext_lazy("event", "Retried"),
    EventKind.RESOLVED: pgettext_lazy("event", "Resolved"),
    EventKind.MOVED: pgettext_lazy("event", "Moved in the queue"),
    EventKind.UPDATED: pgettext_lazy("event", "Changed"),
    EventKind.AGED: pgettext_lazy("event", "Priority raised (aging)"),
}
WAITED, RAN, PAUSED = "waited", "ran", "paused"
_PHASES = {  # that begin with an event; other events that are not the job's end change nothing
    **dict.fromkeys((EventKind.SUBMITTED, EventKind.HELD, EventKind.RELEASED, EventKind.RESUMED), WAITED),
    **dict.fromkeys((EventKind.HANDED_BACK, EventKind.SNOOZED, EventKind.WITHDRAWN), WAITED),
    EventKind.RUNNING: RAN,
    EventKind.PAUSED: PAUSED,
}


@dataclass
class TimelineStep:
    """An event of the job, or a time in the future.

    `lasted` is the time until the next step or until now; None for the last step of a finished job, and in the future.
    """

    label: Promise | str
    at: datetime
    icon: str = "·"
    actor: str = ""
    reason: str = ""
    lasted: timedelta | None = None
    is_future: bool = False
    is_failure: bool = False


def build_timeline(
    job: Job, events: Sequence[JobEvent], explanation: Explanation | None, now: datetime
) -> list[TimelineStep]:
    """Return the steps of the job's timeline: `events`, oldest first, then expected times."""
    steps = []
    for event in events:
        icon = ICONS[Status(event.kind)] if event.kind in set(Status) else "·"
        # The default reason mentions an interruption, which is wrong for a job that was not running.
        is_default = event.reason == DEFAULT_PAUSE_REASON and event.from_status != Status.RUNNING
        reason = "" if is_default or event.reason == ADMITTED_REASON else first_line(event.reason, 500)
        label = EVENT_LABELS.get(event.kind, event.kind)
        step = TimelineStep(label, event.at, icon, format_initiator(event), reason)
        step.is_failure = event.kind == EventKind.FAILED
        steps.append(step)
    for step, next_step in pairwise(steps):
        step.lasted = max(next_step.at - step.at, timedelta(0))
    if job.is_terminal:
        return steps
    if steps:
        steps[-1].lasted = max(now - steps[-1].at, timedelta(0))
    if job.not_before is not None and job.not_before > now and job.status == Status.QUEUED:
        steps.append(TimelineStep(gettext_lazy("Due"), job.not_before, is_future=True))
    if explanation is not None and explanation.predicted_start_at is not None:
        steps.append(TimelineStep(gettext_lazy("Expected start"), explanation.predicted_start_at, is_future=True))
    if job.deadline_at is not None and job.deadline_at > now and job.dispatched_at is None:
        steps.append(TimelineStep(gettext_lazy("Deadline"), job.deadline_at, is_future=True))
    return steps


@dataclass
class TimeSpent:
    """How long a job waited, ran and was paused; the phases in their order."""

    phases: list[tuple[str, timedelta]] = field(default_factory=list)

    def total(self, phase: str = "") -> timedelta:
        return sum((lasted for name, lasted in self.phases if phase in ("", name)), timedelta(0))


def measure_time(job: Job, run: JobRun | None, events: Sequence[JobEvent], now: datetime) -> TimeSpent:
    """Measure the phases of a job from all its events, oldest first; without a start among them, from its run."""
    if run is not None and not any(event.kind == EventKind.RUNNING for event in events):
        moments = [
            (job.created_at, WAITED),
            (run.started_at, RAN),
            *([(run.finished_at, "")] if run.finished_at else []),
        ]
    else:
        moments = [(job.created_at, WAITED)]
        for event in events:
            if event.kind in TERMINAL:
                moments.append((event.at, ""))
            elif (phase := _PHASES.get(EventKind(event.kind))) is not None:
                moments.append((event.at, phase))
    if not job.is_terminal:
        moments.append((now, ""))
    spent = TimeSpent()
    for (start, phase), (end, _next_phase) in pairwise(moments):
        if phase == "":
            break  # what follows the end, such as a retry
        spent.phases.append((phase, max(end - start, timedelta(0))))
    return spent


def estimate_time_left(job: Job, ran: timedelta) -> timedelta | None:
    """Return the rest of a running job by its progress, else by its expected duration; None if it cannot be known."""
    if job.progress:
        return ran * ((1 - job.progress) / job.progress)
    if job.expected_duration_sec is None:
        return None
    return max(timedelta(seconds=job.expected_duration_sec) - ran, timedelta(0)) or None


BAR_WIDTH, BAR_HEIGHT = 1000, 16
_BAR = (
    '<svg class="jc-times" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
    '<p class="jc-small jc-times-legend">{}</p>'
)


def draw_time_bar(spent: TimeSpent) -> SafeString | None:
    """Return a bar of the phases in proportion, with their totals as text; None if nothing has been measured."""
    total = spent.total()
    if not total:
        return None
    texts = {WAITED: _("waited %s"), RAN: _("ran %s"), PAUSED: _("paused %s")}
    x, parts = 0.0, []
    for phase, lasted in spent.phases:
        width = BAR_WIDTH * (lasted / total)
        parts.append((phase, f"{x:.2f}", f"{max(width, 2):.2f}", BAR_HEIGHT, texts[phase] % format_duration(lasted)))
        x += width
    sums = [(phase, text % format_duration(spent.total(phase))) for phase, text in texts.items() if spent.total(phase)]
    summary = ", ".join(text for _phase, text in sums)
    shapes = format_html_join(
        "", '<rect class="jc-{}" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>', parts
    )
    legend = format_html_join(" ", '<span class="jc-key jc-{}">{}</span>', sums)
    return format_html(_BAR, BAR_WIDTH, BAR_HEIGHT, summary, shapes, legend)
