"""`manage.py enqueue TYPE key=value…`: submits a job and prints its id, alone; `--wait` waits for its end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from jobs import cli, parsing, services
from jobs.errors import InvalidInput
from jobs.logs import visible
from jobs.management import waiting
from jobs.models import Job
from jobs.registry import registry
from jobs.submission import Fields

PLAIN = ("target", "tenant", "resource", "idempotency_key")


class Command(cli.CliCommand):
    help = "Submits a job and prints its id. key=value is typed by the handler's own signature."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        # Params and options may stand in any order.
        parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job_type", metavar="TYPE")
        parser.add_argument(
            "pairs", nargs="*", default=[], metavar="key=value", help="Params, read as the handler declares them."
        )
        parser.add_argument("--json", metavar="OBJECT", help="Params as a JSON object; key=value wins over it.")
        parser.add_argument("--priority", help="0 to 100, LOW, NORMAL, HIGH or URGENT.")
        parser.add_argument("--target", help="The serial lane it belongs to.")
        parser.add_argument("--at", metavar="TIME", help="Not before: 2030-01-31T12:00:00Z, or +10m from now.")
        parser.add_argument("--tenant")
        parser.add_argument("--resource")
        parser.add_argument("--tag", action="append", help="May be repeated.")
        parser.add_argument("--max-retries", metavar="N")
        parser.add_argument("--max-runtime", metavar="DURATION", help="Stop it after, e.g. 10m.")
        parser.add_argument("--idempotency-key", metavar="KEY", help="The same key and params give the same job.")
        parser.add_argument("--hold", action="store_true", help="Held until it is released.")
        parser.add_argument("--wait", action="store_true", help="Wait for its end; exit with its exit code.")
        cli.add_reason(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        params = _params(given["job_type"], given["pairs"], given["json"])
        item = {"job_type": given["job_type"], "params": params, **_fields(given)}
        job, _created = services.submit(item, actor=cli.actor(), reason=given["reason"] or "")
        self.stdout.write(str(job.pk))
        self.stdout.flush()
        if given["wait"]:
            self._wait(job.pk)

    def _wait(self, job_id: UUID) -> None:
        progress = waiting.Progress(self.stderr)
        try:
            job = waiting.wait_for(job_id, progress.show)
        except KeyboardInterrupt:
            progress.close()
            message = _("Stopped waiting; job %s goes on without us.") % job_id
            raise CommandError(message, returncode=cli.INTERRUPTED) from None
        progress.close()
        code = waiting.exit_code(job)
        if code:
            raise CommandError(_told(job), returncode=code)


def _params(job_type: str, pairs: list[str], document: str | None) -> dict[str, Any]:
    params = {} if document is None else parsing.json_object(parsing.decode_json(document, "--json"), "--json")
    written: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput([], _("params are written key=value, not “%s”") % visible(pair)[:100])
        if name in written:
            raise InvalidInput(["params", name[:100]], _("appears twice"))
        written[name] = value
    known = registry.get(parsing.identifier(job_type, "job_type"))
    return params | known.signature.coerce_text(written)


def _fields(given: dict[str, Any]) -> Fields:
    said: dict[str, Any] = {name: given[name] for name in PLAIN}
    said["hold"] = given["hold"] or None
    said["tags"] = given["tag"]
    if (priority := given["priority"]) is not None:
        said["priority"] = int(priority) if priority.isascii() and priority.isdigit() else priority
    if given["max_retries"] is not None:
        said["max_retries"] = cli.whole_number(given["max_retries"], "--max-retries", 0, 1000)
    if given["max_runtime"] is not None:
        said["max_runtime_sec"] = cli.duration(given["max_runtime"], "--max-runtime").total_seconds()
    said["not_before"] = None if given["at"] is None else cli.moment(given["at"], "--at")
    return Fields(**said)  # type: ignore[typeddict-item]


def _told(job: Job) -> str:
    reason = (job.status_reason.splitlines() or [""])[0]
    told = _("Job %(id)s ended %(status)s") % {"id": job.pk, "status": job.status}
    return visible(f"{told}: {reason}" if reason else f"{told}.")
