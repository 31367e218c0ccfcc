"""A new schedule as words of a command line."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs import cli, parsing
from jobs.errors import InvalidInput
from jobs.logs import visible
from jobs.models import JobTemplate
from jobs.registry import registry
from jobs.submission import find_template
from schedules.fields import MOST_CATCH_UP, MOST_FIRES
from schedules.models import CatchUp, Overlap

PLAIN = ("name", "cron", "timezone", "template", "fire_time_param", "target", "resource", "catch_up", "overlap")
DURATIONS = ("every", "grace", "jitter")


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


def said(given: dict[str, Any]) -> dict[str, Any]:
    """What the words say, as `services.create` takes it; what they do not say is left out."""
    job_type, pairs = _split(given["words"])
    values = {name: given[name] for name in PLAIN if given[name] is not None}
    values |= {"job_type": job_type} if job_type is not None else {}
    values |= _numbers(given) | _times(given)
    if pairs or given["params"] is not None:
        values["params"] = _params(given, job_type, pairs)
    if given["disabled"]:
        values["enabled"] = False
    return values


def _numbers(given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if given["max_fires"] is not None:
        found["max_fires"] = cli.whole_number(given["max_fires"], "--max-fires", 1, MOST_FIRES)
    if given["catch_up_max"] is not None:
        found["catch_up_max"] = cli.whole_number(given["catch_up_max"], "--catch-up-max", 1, MOST_CATCH_UP)
    if (priority := given["priority"]) is not None:
        found["priority"] = int(priority) if priority.isascii() and priority.isdigit() else priority
    return found


def _times(given: dict[str, Any]) -> dict[str, Any]:
    columns = {"every": "every_sec", "grace": "misfire_grace_sec", "jitter": "jitter_sec"}
    found: dict[str, Any] = {
        columns[name]: cli.duration(given[name], f"--{name}").total_seconds()
        for name in DURATIONS
        if given[name] not in (None, "0", "0s")
    }
    found |= {columns[name]: 0 for name in ("grace", "jitter") if given[name] in ("0", "0s")}
    for option, column in (("at", "run_at"), ("anchor", "anchor_at")):
        if given[option] is not None:
            found[column] = cli.moment(given[option], f"--{option}")
    return found


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return None, words


def _params(given: dict[str, Any], job_type: str | None, pairs: list[str]) -> dict[str, Any]:
    document = given["params"]
    params = {} if document is None else parsing.json_object(parsing.decode_json(document, "--params"), "--params")
    written: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput([], _("params are written key=value, not “%s”") % visible(pair)[:100])
        if name in written:
            raise InvalidInput(["params", name[:100]], _("appears twice"))
        written[name] = value
    return params | registry.get(_type(given, job_type)).signature.coerce_text(written)


def _type(given: dict[str, Any], job_type: str | None) -> str:
    if job_type is not None:
        return parsing.identifier(job_type, "job_type")
    if given["template"] is None:
        raise InvalidInput("job_type", _("say either a job type or a template"), "missing")
    template: JobTemplate = find_template(given["template"], parsing.tenant(given["tenant"], "--tenant"))
    return template.job_type
