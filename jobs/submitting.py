"""A submission that is told whether it made the job or found it: a side door beside `services.enqueue` for the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.utils.translation import gettext as _

from jobs import services, submission
from jobs.actors import Actor
from jobs.errors import InvalidInput


def submitted(said: Mapping[str, Any], *, actor: Actor) -> tuple[UUID, bool]:
    """The id of the job, and whether it was made now. `said` is what `services.enqueue` takes, as a mapping."""
    values = submission.form_of(said).values(said.get("params"), said.get("idempotency_key"))
    try:
        job = services.submit_values(values, actor=actor)
    except IntegrityError:  # the foreign key is looked at on commit, and the template was deleted meanwhile
        raise InvalidInput("template", _("There is no such template any more."), "unknown_template") from None
    return job.pk, job.pk == values["id"]
