"""`manage.py schedules`: when jobs are made by themselves, from a terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs.errors import InvalidInput
from jobs.management import base
from jobs.registry import registry
from jobs.serializers import job as job_document
from jobs.serializers import moment
from jobs.services.job_spec import find_template
from jobs.validation import fields
from schedules import history, serializers, services
from schedules.models import CatchUp, Overlap, Schedule
from schedules.validation import MOST_CATCH_UP, MOST_FIRES

HEADINGS = ("NAME", "TENANT", "WHEN", "WHAT", "NEXT", "LAST", "STATE")
PLAIN = ("name", "cron", "timezone", "template", "fire_time_param", "target", "resource", "catch_up", "overlap")
VERBS = {
    "enable": ("Fire again, from the next due time on.", services.enable),
    "disable": ("Fire no more.", services.disable),
    "skip-next": ("Leave out the next fire; the one after it comes as usual.", services.skip_next),
}


class Command(base.CliCommand):
    help = "Lists, makes and operates schedules. A schedule is named by its name or its id."

    def add_arguments(self, parser: CommandParser) -> None:
        every = self.add_verbs(parser)
        listing = self.add_verb(every, "list", "Schedules by tenant and name.")
        listing.add_argument("--tenant", help="Only of this tenant.")
        base.add_limit(listing)
        base.add_json(listing)
        for name in ("add", "create"):
            making = self.add_verb(every, name, "Make a schedule: NAME TYPE key=value… --cron '0 3 * * *'.")
            making.add_argument("name", metavar="NAME")
            add_options(making)
            base.add_json(making)
        for name, (summary, _service) in {**VERBS, "trigger": ("Make its job now; prints its id.", None)}.items():
            base.add_reason(self._add(every, name, summary))
        self._add(every, "delete", "Forget it and its history; its jobs stay.")
        preview = self.add_verb(every, "preview", "The next due times of a schedule, or of --cron.")
        preview.add_argument("name", nargs="?", metavar="SCHEDULE")
        preview.add_argument("--tenant", default="default")
        preview.add_argument("--cron", metavar="EXPRESSION")
        preview.add_argument("--timezone", metavar="ZONE", default="UTC", help="For --cron (default %(default)s).")
        preview.add_argument("--count", default=str(history.DEFAULT), help="How many (default %(default)s).")
        fires = self._add(every, "fires", "What it has fired, latest first, and what became of it.", with_json=False)
        base.add_limit(fires)
        for verb in (preview, fires):
            base.add_json(verb)

    def _add(self, every: Any, name: str, summary: str, *, with_json: bool = True) -> CommandParser:
        verb = self.add_verb(every, name, summary)
        verb.add_argument("name", metavar="SCHEDULE")
        verb.add_argument("--tenant", default="default")
        if with_json:
            base.add_json(verb)
        return verb

    def handle(self, *args: Any, **given: Any) -> None:
        verb = given["verb"]
        if verb in VERBS:
            done = VERBS[verb][1](self._named(given).pk, reason=given["reason"], actor=base.actor())
            self._show([done], given["json"], one=True)
        else:
            getattr(self, f"do_{verb}")(given)

    def do_list(self, given: dict[str, Any]) -> None:
        tenant = None if given["tenant"] is None else fields.parse_tenant(given["tenant"], "--tenant")
        found = services.of(tenant).order_by("tenant", "name")
        self._show(list(found[: base.limit(given)]), given["json"])

    def do_add(self, given: dict[str, Any]) -> None:
        made = services.create(parse_options(given), tenant=given["tenant"], actor=base.actor())
        self._show([made], given["json"], one=True)

    do_create = do_add

    def do_trigger(self, given: dict[str, Any]) -> None:
        job = services.trigger(self._named(given).pk, reason=given["reason"], actor=base.actor())
        if given["json"]:
            self.write_json(job_document(job))
        else:
            self.stdout.write(str(job.pk))

    def do_delete(self, given: dict[str, Any]) -> None:
        schedule = self._named(given)
        services.delete(schedule.pk, actor=base.actor())
        if given["json"]:
            self.write_json({"deleted": str(schedule.pk)})
        else:
            self.stdout.write(_("Schedule %s was deleted.") % schedule.name)

    def do_preview(self, given: dict[str, Any]) -> None:
        if (given["name"] is None) == (given["cron"] is None):
            raise InvalidInput([], _("say either a schedule or --cron"))
        count = base.whole_number(given["count"], "--count", history.FEWEST, history.MOST)
        if given["cron"] is not None:
            found = history.of_cron(given["cron"], given["timezone"], count)
        else:
            found = history.of_schedule(self._named(given), count)
        if given["json"]:
            self.write_json([serializers.upcoming(due) for due in found])
        else:
            rows = [(moment(due.fire_at), due.local.isoformat(), due.note or "") for due in found]
            self.write_table(("DUE", "THERE", "NOTE"), rows)

    def do_fires(self, given: dict[str, Any]) -> None:
        found = history.with_outcomes(history.fires_of(self._named(given))[: base.limit(given)])
        if given["json"]:
            self.write_json([serializers.fire(fire) for fire in found])
        else:
            rows = [(moment(p.fire.fire_time), p.outcome or "-", p.fire.job_id or "-", p.fire.note) for p in found]
            self.write_table(("DUE", "OUTCOME", "JOB", "NOTE"), rows)

    def _named(self, given: dict[str, Any]) -> Schedule:
        return services.get_by_name(given["name"], tenant=given["tenant"])

    def _show(self, found: list[Schedule], as_json: bool, *, one: bool = False) -> None:
        if as_json:
            documents = [serializers.schedule(schedule) for schedule in found]
            self.write_json(documents[0] if one else documents)
        else:
            self.write_table(HEADINGS, [_row(schedule) for schedule in found])


def _row(schedule: Schedule) -> tuple[object, ...]:
    what = schedule.job_type or (schedule.template.name if schedule.template else "")
    state = _("enabled") if schedule.enabled else _("disabled: %s") % (schedule.disabled_reason or _("by a person"))
    times = (moment(schedule.next_fire_at) or "-", moment(schedule.last_fire_at) or "-")
    return (schedule.name, schedule.tenant, when(schedule), what, *times, state)


def when(schedule: Schedule) -> str:
    if schedule.cron is not None:
        return f"{schedule.cron} {schedule.timezone}"
    if schedule.every_sec is not None:
        return _("every %d s") % schedule.every_sec
    return _("once, at %s") % moment(schedule.run_at)


def add_options(parser: CommandParser) -> None:
    parser.add_argument(
        "words", nargs="*", default=[], metavar="TYPE key=value", help="The job type (or --template) and params."
    )
    parser.add_argument("--template", metavar="NAME")
    parser.add_argument("--params", metavar="OBJECT", help="Params as a JSON object; key=value wins over it.")
    rule = parser.add_argument_group("when", "exactly one of --cron, --every and --at")
    rule.add_argument("--cron", metavar="EXPRESSION", help="Five fields, or @daily and the like.")
    rule.add_argument("--every", metavar="DURATION", help="Such as 90s, 15m or 1d.")
    rule.add_argument("--anchor", metavar="TIME", help="What --every is counted from (default: now).")
    rule.add_argument("--at", metavar="TIME", help="Once: 2030-01-31T12:00:00Z, or +10m from now.")
    rule.add_argument("--timezone", metavar="ZONE", help="Where --cron is read, such as Europe/Berlin (default UTC).")
    parser.add_argument("--max-fires", metavar="N")
    parser.add_argument("--priority", help="0 to 100, LOW, NORMAL, HIGH or URGENT.")
    parser.add_argument("--target", help="The serial lane of its jobs.")
    parser.add_argument("--resource")
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--catch-up", metavar="|".join(CatchUp.values), help="After an absence (default latest).")
    parser.add_argument("--catch-up-max", metavar="N", help="With --catch-up all (default 10, the newest).")
    parser.add_argument("--overlap", metavar="|".join(Overlap.values), help="While the last one is live (allow).")
    parser.add_argument("--grace", metavar="DURATION", help="How late is still in time (default 60s).")
    parser.add_argument("--jitter", metavar="DURATION", help="Spread the starts over so long.")
    parser.add_argument("--fire-time-param", metavar="NAME", help="Give the handler the due time under this name.")
    parser.add_argument("--disabled", action="store_true", help="Make it, and let it wait to be enabled.")
    _allow_any_order(parser)


def _allow_any_order(parser: CommandParser) -> None:
    """Params may stand behind options, too: argparse can do that, but not for the parser of a verb."""
    plain = parser.parse_known_args

    def parse(*args: Any, **kwargs: Any) -> Any:
        parser.parse_known_args = plain  # type: ignore[method-assign]
        try:
            return parser.parse_known_intermixed_args(*args, **kwargs)
        finally:
            parser.parse_known_args = parse  # type: ignore[method-assign]

    parser.parse_known_args = parse  # type: ignore[method-assign]


def parse_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options as `services.create` takes them; options that are not given are left out."""
    words = given["words"]
    job_type, pairs = (words[0], words[1:]) if words and "=" not in words[0] else (None, words)
    values = {name: given[name] for name in PLAIN if given[name] is not None}
    if job_type is not None:
        values["job_type"] = job_type
    if given["max_fires"] is not None:
        values["max_fires"] = base.whole_number(given["max_fires"], "--max-fires", 1, MOST_FIRES)
    if given["catch_up_max"] is not None:
        values["catch_up_max"] = base.whole_number(given["catch_up_max"], "--catch-up-max", 1, MOST_CATCH_UP)
    if given["priority"] is not None:
        values["priority"] = base.priority(given["priority"])
    for option, column in (("every", "every_sec"), ("grace", "misfire_grace_sec"), ("jitter", "jitter_sec")):
        if given[option] in ("0", "0s") and option != "every":
            values[column] = 0
        elif given[option] not in (None, "0", "0s"):
            values[column] = base.duration(given[option], f"--{option}").total_seconds()
    for option, column in (("at", "run_at"), ("anchor", "anchor_at")):
        if given[option] is not None:
            values[column] = base.moment(given[option], f"--{option}")
    if pairs or given["params"] is not None:
        params, written = base.read_params(pairs, given["params"], "--params")
        if job_type is None and given["template"] is None:
            raise InvalidInput("job_type", _("say either a job type or a template"), "missing")
        if job_type is None:
            job_type = find_template(given["template"], fields.parse_tenant(given["tenant"], "--tenant")).job_type
        handler = registry.get(fields.parse_identifier(job_type, "job_type"))
        values["params"] = params | handler.signature.coerce_text(written)
    if given["disabled"]:
        values["enabled"] = False
    return values
