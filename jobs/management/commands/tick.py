"""`manage.py tick`: run every maintenance task once, for a site without a running worker."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from jobs.management import base
from jobs.services import maintenance


class Command(base.CliCommand):
    help = "Run every maintenance task once and print the results; exit code 1 if one failed."

    def handle(self, *args: Any, **options: Any) -> None:
        # The printed line is enough at a terminal.
        results = maintenance.run_tasks(log_tracebacks=bool(options["traceback"]))
        failed = [name for name, result in results.items() if isinstance(result, Exception)]
        for name, result in results.items():
            message = f"{type(result).__name__}: {base.first_line(result)}" if name in failed else result
            self.stdout.write(f"{name}: {message}")
        if failed:
            raise CommandError(_("Failed: %s.") % ", ".join(failed), returncode=base.REFUSED)
