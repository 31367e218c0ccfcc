"""The operator actions on jobs: their texts, permissions and services, and the report on what one of them did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy, pgettext_lazy

from jobs.admin import screens
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status

DETAILS_SHOWN = 5  # reasons for skipped jobs, and job ids for each


@dataclass(frozen=True)
class JobAction:
    """An action on jobs, and how the admin offers it. `call(job_id, actor=…, reason=…)` is a service."""

    name: str
    label: Promise  # of the button
    list_label: Promise
    will_text: Any  # of the dry run: a sentence with %(count)d
    done_text: Any  # of the report: likewise
    call: Callable[..., Job]
    in_list: ClassVar[bool] = True

    @property
    def permission(self) -> str:
        return f"{screens.APP}.{'reorder' if self.name == CHANGE_PRIORITY.name else self.name}_job"


JOB_ACTIONS: dict[str, JobAction] = {
    action.name: action
    for action in (
        JobAction(
            "release",
            pgettext_lazy("verb", "Release"),
            gettext_lazy("Release selected held jobs"),
            ngettext_lazy("%(count)d will be released", "%(count)d will be released", "count"),
            ngettext_lazy("%(count)d job released", "%(count)d jobs released", "count"),
            job_services.release,
        ),
        JobAction(
            "pause",
            pgettext_lazy("verb", "Pause"),
            gettext_lazy("Pause selected jobs"),
            ngettext_lazy("%(count)d will be paused", "%(count)d will be paused", "count"),
            ngettext_lazy("%(count)d job paused", "%(count)d jobs paused", "count"),
            job_services.pause,
        ),
        JobAction(
            "resume",
            pgettext_lazy("verb", "Resume"),
            gettext_lazy("Resume selected jobs"),
            ngettext_lazy("%(count)d will be resumed", "%(count)d will be resumed", "count"),
            ngettext_lazy("%(count)d job resumed", "%(count)d jobs resumed", "count"),
            job_services.resume,
        ),
        JobAction(
            "retry",
            pgettext_lazy("verb", "Retry"),
            gettext_lazy("Retry selected jobs"),
            ngettext_lazy("%(count)d will be retried", "%(count)d will be retried", "count"),
            ngettext_lazy("%(count)d job retried", "%(count)d jobs retried", "count"),
            job_services.retry,
        ),
        JobAction(
            "resolve",
            pgettext_lazy("verb", "Resolve"),
            gettext_lazy("Resolve selected failed jobs"),
            ngettext_lazy("%(count)d will be resolved", "%(count)d will be resolved", "count"),
            ngettext_lazy("%(count)d job resolved", "%(count)d jobs resolved", "count"),
            job_services.resolve,
        ),
        JobAction(
            "cancel",
            pgettext_lazy("verb", "Cancel"),
            gettext_lazy("Cancel selected jobs"),
            ngettext_lazy("%(count)d will be cancelled", "%(count)d will be cancelled", "count"),
            ngettext_lazy("%(count)d job cancelled", "%(count)d jobs cancelled", "count"),
            job_services.cancel,
        ),
    )
}
CHANGE_PRIORITY = JobAction(
    "change_priority",
    gettext_lazy("Change priority"),
    gettext_lazy("Change priority of selected jobs"),
    ngettext_lazy("%(count)d will be changed", "%(count)d will be changed", "count"),
    ngettext_lazy("%(count)d job changed", "%(count)d jobs changed", "count"),
    job_services.update,  # bind_priority adds the number
)


@dataclass
class ActionReport:
    """The jobs that an action changed, asked to stop or skipped; as a string, the report on them."""

    action: JobAction
    done: list[UUID] = field(default_factory=list)
    stop_requested: list[UUID] = field(default_factory=list)
    skipped: dict[str, list[UUID]] = field(default_factory=dict)
    left: int = 0  # selected jobs beyond the limit of one action
    created: list[Job] = field(default_factory=list)

    def add(self, job_id: UUID, job: Job) -> None:
        """Count one job. `job` is what the service returned: the same job, or its retry."""
        is_stopping = self.action.name in ("cancel", "pause") and job.status == Status.RUNNING
        (self.stop_requested if is_stopping else self.done).append(job_id)
        if job.pk != job_id:
            self.created.append(job)

    def __str__(self) -> str:
        parts = [str(self.action.done_text % {"count": len(self.done)})] if self.done or not self.stop_requested else []
        if stop_requested := len(self.stop_requested):
            if self.action.name == "pause":
                sentence = ngettext("%(count)d asked to pause", "%(count)d asked to pause", stop_requested)
            else:
                sentence = ngettext("%(count)d asked to stop", "%(count)d asked to stop", stop_requested)
            parts.append(sentence % {"count": stop_requested})
        unlisted = sum(map(len, self.skipped.values()))
        for why, job_ids in list(self.skipped.items())[:DETAILS_SHOWN]:
            count = len(job_ids)
            sentence = ngettext("%(count)d skipped: %(why)s", "%(count)d skipped: %(why)s", count)
            names = f" ({', '.join(map(str, job_ids))})" if count <= DETAILS_SHOWN else ""
            parts.append(sentence % {"count": count, "why": why} + names)
            unlisted -= count
        if unlisted:
            parts.append(ngettext("%d more skipped", "%d more skipped", unlisted) % unlisted)
        if self.left:
            parts.append(_("%s not looked at: narrow the list to reach them") % self.left)
        return ", ".join(parts) + "."
