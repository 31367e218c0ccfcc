"""`manage.py recover`: run lease recovery once, for a site without running workers, or from cron."""

from __future__ import annotations

from typing import Any

from django.utils.translation import ngettext

from jobs.management import base
from jobs.services import maintenance


class Command(base.CliCommand):
    help = "Fail jobs whose lease has expired, as each worker does regularly, and retry those that have retries left."

    def handle(self, *args: Any, **options: Any) -> None:
        count = maintenance.recover_lost_jobs()
        self.stdout.write(ngettext("%d job recovered.", "%d jobs recovered.", count) % count)
