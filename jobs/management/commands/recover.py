"""`manage.py recover`: one round of recovery, for a site whose workers are all gone or for a cron job."""

from __future__ import annotations

from typing import Any

from django.utils.translation import ngettext

from jobs.engine.maintenance.recovery import LeaseReaper
from jobs.management import base


class Command(base.CliCommand):
    help = "Ends jobs whose lease is over, as each worker does regularly, and retries those that may be."

    def handle(self, *args: Any, **given: Any) -> None:
        ended = LeaseReaper().run_round()
        self.stdout.write(ngettext("%d job recovered.", "%d jobs recovered.", ended) % ended)
