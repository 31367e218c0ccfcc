"""`manage.py schedules`: list, create and operate schedules."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs.errors import InvalidInput
from jobs.management import base
from jobs.registry import registry
from jobs.serializers import serialize_job as job_document
from jobs.services.job_spec import find_template
from jobs.time_text import format_time
from jobs.validation import fields
from schedules import history, services
from schedules.models import CatchUp, Overlap, Schedule
from schedules.serializers import serialize_fire, serialize_schedule, serialize_upcoming
from schedules.validation import MAX_CATCH_UP, MAX_FIRES

HEADINGS = ("NAME", "TENANT", "WHEN", "WHAT", "NEXT", "LAST", "STATE")
PLAIN_OPTIONS = ("name", "cron", "timezone", "template", "fire_time_param", "target", "resource", "catch_up", "overlap")
ACTIONS = {
    "enable": ("Enable a schedule, from its next due time on.", services.enable),
    "disable": ("Disable a schedule.", services.disable),
    "skip-next": ("Skip the next run; the one after it comes as usual.", services.skip_next),
}


class Command(base.CliCommand):
    help = "Lists, creates and operates schedules. A schedule is given by its name or its id."

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = self.add_subcommands(parser)
        list_parser = self.add_subcommand(subcommands, "list", "List schedules by tenant and name.")
        list_parser.add_argument("--tenant", help="Only of this tenant.")
        base.add_limit_option(list_parser)
        base.add_json_option(list_parser)
        for name in ("add", "create"):
            add_parser = self.add_subcommand(
                subcommands, name, "Create a schedule: NAME TYPE key=value… --cron '0 3 * * *'."
            )
            add_parser.add_argument("name", metavar="NAME")
            add_options(add_parser)
            base.add_json_option(add_parser)
        for name, (summary, _service) in ACTIONS.items():
            base.add_reason_option(self._add_subcommand(subcommands, name, summary))
        base.add_reason_option(self._add_subcommand(subcommands, "trigger", "Submit its job now; prints the job's id."))
        self._add_subcommand(subcommands, "delete", "Delete a schedule and its history; its jobs stay.")
        preview = self.add_subcommand(subcommands, "preview", "List the next due times of a schedule, or of --cron.")
        preview.add_argument("name", nargs="?", metavar="SCHEDULE")
        preview.add_argument("--tenant", default="default")
        preview.add_argument("--cron", metavar="EXPRESSION")
        preview.add_argument("--timezone", metavar="ZONE", default="UTC", help="For --cron (default %(default)s).")
        preview.add_argument("--count", default=str(history.DEFAULT_COUNT), help="How many (default %(default)s).")
        fires = self._add_subcommand(subcommands, "fires", "List past runs, latest first.", with_json=False)
        base.add_limit_option(fires)
        for subcommand in (preview, fires):
            base.add_json_option(subcommand)

    def _add_subcommand(self, subcommands: Any, name: str, summary: str, *, with_json: bool = True) -> CommandParser:
        parser = self.add_subcommand(subcommands, name, summary)
        parser.add_argument("name", metavar="SCHEDULE")
        parser.add_argument("--tenant", default="default")
        if with_json:
            base.add_json_option(parser)
        return parser

    def handle(self, *args: Any, **options: Any) -> None:
        subcommand = options["subcommand"]
        if subcommand in ACTIONS:
            run_action = ACTIONS[subcommand][1]
            schedule = run_action(self._get_schedule(options).pk, reason=options["reason"], actor=base.current_actor())
            self._write_schedules([schedule], options["json"], single=True)
        else:
            getattr(self, f"do_{subcommand}")(options)

    def do_list(self, options: dict[str, Any]) -> None:
        tenant = None if options["tenant"] is None else fields.parse_tenant(options["tenant"], "--tenant")
        schedules = services.of(tenant).order_by("tenant", "name")
        self._write_schedules(list(schedules[: base.parse_limit(options)]), options["json"])

    def do_add(self, options: dict[str, Any]) -> None:
        schedule = services.create(parse_options(options), tenant=options["tenant"], actor=base.current_actor())
        self._write_schedules([schedule], options["json"], single=True)

    do_create = do_add

    def do_trigger(self, options: dict[str, Any]) -> None:
        job = services.trigger(self._get_schedule(options).pk, reason=options["reason"], actor=base.current_actor())
        if options["json"]:
            self.write_json(job_document(job))
        else:
            self.stdout.write(str(job.pk))

    def do_delete(self, options: dict[str, Any]) -> None:
        schedule = self._get_schedule(options)
        services.delete(schedule.pk, actor=base.current_actor())
        if options["json"]:
            self.write_json({"deleted": str(schedule.pk)})
        else:
            self.stdout.write(_("Schedule %s was deleted.") % schedule.name)

    def do_preview(self, options: dict[str, Any]) -> None:
        if (options["name"] is None) == (options["cron"] is None):
            raise InvalidInput([], _("enter either a schedule or --cron"))
        maximum = history.MAX_COUNT if options["cron"] is None else history.MAX_UNSAVED_COUNT
        count = base.parse_whole_number(options["count"], "--count", history.MIN_COUNT, maximum)
        if options["cron"] is not None:
            upcoming = history.preview_cron(options["cron"], options["timezone"], count)
        else:
            upcoming = history.preview_schedule(self._get_schedule(options), count)
        if options["json"]:
            self.write_json([serialize_upcoming(fire) for fire in upcoming.fires])
        else:
            rows = [(format_time(fire.fire_at), fire.local.isoformat(), fire.note or "") for fire in upcoming.fires]
            self.write_table(("DUE", "LOCAL", "NOTE"), rows)
        if upcoming.is_truncated:
            self.stderr.write(_("There are more, but not within 100 years."))

    def do_fires(self, options: dict[str, Any]) -> None:
        past = history.load_outcomes(history.fires_of(self._get_schedule(options))[: base.parse_limit(options)])
        if options["json"]:
            self.write_json([serialize_fire(fire) for fire in past])
        else:
            rows = [(format_time(p.fire.fire_time), p.outcome or "-", p.fire.job_id or "-", p.fire.note) for p in past]
            self.write_table(("DUE", "OUTCOME", "JOB", "NOTE"), rows)

    def _get_schedule(self, options: dict[str, Any]) -> Schedule:
        return services.get_by_name(options["name"], tenant=options["tenant"])

    def _write_schedules(self, schedules: list[Schedule], as_json: bool, *, single: bool = False) -> None:
        if as_json:
            documents = [serialize_schedule(schedule) for schedule in schedules]
            self.write_json(documents[0] if single else documents)
        else:
            self.write_table(HEADINGS, [_format_row(schedule) for schedule in schedules])


def _format_row(schedule: Schedule) -> tuple[object, ...]:
    job_type = schedule.job_type or (schedule.template.name if schedule.template else "")
    state = _("enabled") if schedule.enabled else _("disabled: %s") % (schedule.disabled_reason or _("by an operator"))
    times = (format_time(schedule.next_fire_at) or "-", format_time(schedule.last_fire_at) or "-")
    if schedule.cron is not None:
        rule = f"{schedule.cron} {schedule.timezone}"
    elif schedule.every_sec is not None:
        rule = _("every %d s") % schedule.every_sec
    else:
        rule = _("once, at %s") % format_time(schedule.run_at)
    return (schedule.name, schedule.tenant, rule, job_type, *times, state)


def add_options(parser: CommandParser) -> None:
    parser.add_argument(
        "job", nargs="*", default=[], metavar="TYPE key=value", help="The job type (or --template) and params."
    )
    parser.add_argument("--template", metavar="NAME")
    parser.add_argument("--params", metavar="OBJECT", help="Params as a JSON object; key=value wins over it.")
    rule = parser.add_argument_group("when", "exactly one of --cron, --every and --at")
    rule.add_argument("--cron", metavar="EXPRESSION", help="Five fields, or an alias such as @daily.")
    rule.add_argument("--every", metavar="DURATION", help="Such as 90s, 15m or 1d.")
    rule.add_argument("--anchor", metavar="TIME", help="The time from which --every counts (default: now).")
    rule.add_argument("--at", metavar="TIME", help="Once: 2030-01-31T12:00:00Z, or +10m from now.")
    rule.add_argument("--timezone", metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin (default UTC).")
    parser.add_argument("--max-fires", metavar="N")
    parser.add_argument("--priority", help="0 to 100, LOW, NORMAL, HIGH or URGENT.")
    parser.add_argument("--target", help="The target of its jobs; jobs of one target run one at a time.")
    parser.add_argument("--resource")
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--catch-up", metavar="|".join(CatchUp.values), help="After downtime (default latest).")
    parser.add_argument("--catch-up-max", metavar="N", help="Limit of --catch-up all (default 10, the latest).")
    parser.add_argument("--overlap", metavar="|".join(Overlap.values), help="While its last job is live (allow).")
    parser.add_argument("--grace", metavar="DURATION", help="Runs later than this count as missed (default 60s).")
    parser.add_argument("--jitter", metavar="DURATION", help="Random delay of each start, up to this long.")
    parser.add_argument("--fire-time-param", metavar="NAME", help="Name of the param that receives the due time.")
    parser.add_argument("--disabled", action="store_true", help="Create it disabled.")
    _allow_any_order(parser)


def _allow_any_order(parser: CommandParser) -> None:
    """Accept params after options, too: argparse does so, but not for the parser of a subcommand."""
    parse_in_order = parser.parse_known_args

    def parse(*args: Any, **kwargs: Any) -> Any:
        parser.parse_known_args = parse_in_order  # type: ignore[method-assign]
        try:
            return parser.parse_known_intermixed_args(*args, **kwargs)
        finally:
            parser.parse_known_args = parse  # type: ignore[method-assign]

    parser.parse_known_args = parse  # type: ignore[method-assign]


def parse_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for `services.create`; options that are not given are left out."""
    arguments = options["job"]
    has_type = bool(arguments) and "=" not in arguments[0]
    job_type, pairs = (arguments[0], arguments[1:]) if has_type else (None, arguments)
    values = {name: options[name] for name in PLAIN_OPTIONS if options[name] is not None}
    if job_type is not None:
        values["job_type"] = job_type
    if options["max_fires"] is not None:
        values["max_fires"] = base.parse_whole_number(options["max_fires"], "--max-fires", 1, MAX_FIRES)
    if options["catch_up_max"] is not None:
        values["catch_up_max"] = base.parse_whole_number(options["catch_up_max"], "--catch-up-max", 1, MAX_CATCH_UP)
    if options["priority"] is not None:
        values["priority"] = base.parse_priority(options["priority"])
    for option, column in (("every", "every_sec"), ("grace", "misfire_grace_sec"), ("jitter", "jitter_sec")):
        if options[option] in ("0", "0s") and option != "every":
            values[column] = 0
        elif options[option] not in (None, "0", "0s"):
            values[column] = fields.parse_duration(options[option], f"--{option}").total_seconds()
    for option, column in (("at", "run_at"), ("anchor", "anchor_at")):
        if options[option] is not None:
            values[column] = base.parse_moment(options[option], f"--{option}")
    if pairs or options["params"] is not None:
        params, texts = base.read_params(pairs, options["params"], "--params")
        if job_type is None and options["template"] is None:
            raise InvalidInput("job_type", _("enter either a job type or a template"), "missing")
        if job_type is None:
            job_type = find_template(options["template"], fields.parse_tenant(options["tenant"], "--tenant")).job_type
        handler = registry.get(fields.parse_identifier(job_type, "job_type"))
        values["params"] = params | handler.signature.coerce_text(texts)
    if options["disabled"]:
        values["enabled"] = False
    return values
