"""`manage.py schedules`: when jobs are made by themselves, from a terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs import cli, parsing
from jobs.errors import InvalidInput
from jobs.shapes import job as job_document
from jobs.shapes import moment
from schedules import history, services, shapes
from schedules.management.adding import add_options, said
from schedules.models import Schedule

SHOWN, MOST = 50, 10_000
HEADINGS = ("NAME", "TENANT", "WHEN", "WHAT", "NEXT", "LAST", "STATE")
VERBS = {
    "enable": ("Fire again, from the next due time on.", services.enable),
    "disable": ("Fire no more.", services.disable),
    "skip-next": ("Leave out the next fire; the one after it comes as usual.", services.skip_next),
}


class Command(cli.CliCommand):
    help = "Lists, makes and operates schedules. A schedule is named by its name or its id."

    def add_arguments(self, parser: CommandParser) -> None:
        every = self.add_verbs(parser)
        listing = self.add_verb(every, "list", "Schedules by tenant and name.")
        listing.add_argument("--tenant", help="Only of this tenant.")
        listing.add_argument("--limit", default=str(SHOWN), help="At most so many (default %(default)s).")
        cli.add_json(listing)
        self._add_making(every)
        for name, (summary, _service) in {**VERBS, "trigger": ("Make its job now; prints its id.", None)}.items():
            cli.add_reason(self._add(every, name, summary))
        self._add(every, "delete", "Forget it and its history; its jobs stay.")
        self._add_looking(every)

    def _add_making(self, every: Any) -> None:
        for name in ("add", "create"):
            making = self.add_verb(every, name, "Make a schedule: NAME TYPE key=value… --cron '0 3 * * *'.")
            making.add_argument("name", metavar="NAME")
            add_options(making)
            cli.add_json(making)

    def _add_looking(self, every: Any) -> None:
        preview = self.add_verb(every, "preview", "The next due times of a schedule, or of --cron.")
        preview.add_argument("name", nargs="?", metavar="SCHEDULE")
        preview.add_argument("--tenant", default="default")
        preview.add_argument("--cron", metavar="EXPRESSION")
        preview.add_argument("--timezone", metavar="ZONE", default="UTC", help="For --cron (default %(default)s).")
        preview.add_argument("--count", default=str(history.DEFAULT), help="How many (default %(default)s).")
        fires = self._add(every, "fires", "What it has fired, latest first, and what became of it.", with_json=False)
        fires.add_argument("--limit", default=str(SHOWN), help="At most so many (default %(default)s).")
        for each in (preview, fires):
            cli.add_json(each)

    def _add(self, every: Any, name: str, summary: str, *, with_json: bool = True) -> CommandParser:
        verb = self.add_verb(every, name, summary)
        verb.add_argument("name", metavar="SCHEDULE")
        verb.add_argument("--tenant", default="default")
        if with_json:
            cli.add_json(verb)
        return verb

    def handle(self, *args: Any, **given: Any) -> None:
        verb = given["verb"]
        if verb in VERBS:
            done = VERBS[verb][1](self._named(given).pk, reason=given["reason"], actor=cli.actor())
            self._show([done], given["json"], one=True)
        else:
            getattr(self, f"do_{verb}")(given)

    def do_list(self, given: dict[str, Any]) -> None:
        tenant = None if given["tenant"] is None else parsing.tenant(given["tenant"], "--tenant")
        found = services.of(tenant).order_by("tenant", "name")
        self._show(list(found[: cli.whole_number(given["limit"], "--limit", 1, MOST)]), given["json"])

    def do_add(self, given: dict[str, Any]) -> None:
        made = services.create(said(given), tenant=given["tenant"], actor=cli.actor())
        self._show([made], given["json"], one=True)

    do_create = do_add

    def do_trigger(self, given: dict[str, Any]) -> None:
        job = services.trigger(self._named(given).pk, reason=given["reason"], actor=cli.actor())
        if given["json"]:
            self.write_json(job_document(job))
        else:
            self.stdout.write(str(job.pk))

    def do_delete(self, given: dict[str, Any]) -> None:
        schedule = self._named(given)
        services.delete(schedule.pk, actor=cli.actor())
        if given["json"]:
            self.write_json({"deleted": str(schedule.pk)})
        else:
            self.stdout.write(_("Schedule %s was deleted.") % schedule.name)

    def do_preview(self, given: dict[str, Any]) -> None:
        if (given["name"] is None) == (given["cron"] is None):
            raise InvalidInput([], _("say either a schedule or --cron"))
        count = cli.whole_number(given["count"], "--count", history.FEWEST, history.MOST)
        if given["cron"] is not None:
            found = history.of_cron(given["cron"], given["timezone"], count)
        else:
            found = history.of_schedule(self._named(given), count)
        if given["json"]:
            self.write_json([shapes.upcoming(each) for each in found])
        else:
            rows = [(moment(each.fire_at), each.local.isoformat(), each.note or "") for each in found]
            self.write_table(("DUE", "THERE", "NOTE"), rows)

    def do_fires(self, given: dict[str, Any]) -> None:
        most = cli.whole_number(given["limit"], "--limit", 1, MOST)
        found = history.with_outcomes(history.fires_of(self._named(given))[:most])
        if given["json"]:
            self.write_json([shapes.fire(each) for each in found])
        else:
            rows = [(moment(p.fire.fire_time), p.outcome or "-", p.fire.job_id or "-", p.fire.note) for p in found]
            self.write_table(("DUE", "OUTCOME", "JOB", "NOTE"), rows)

    def _named(self, given: dict[str, Any]) -> Schedule:
        return services.named(given["name"], tenant=given["tenant"])

    def _show(self, found: list[Schedule], as_json: bool, *, one: bool = False) -> None:
        if as_json:
            documents = [shapes.schedule(each) for each in found]
            self.write_json(documents[0] if one else documents)
        else:
            self.write_table(HEADINGS, [row(each) for each in found])


def row(schedule: Schedule) -> tuple[object, ...]:
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
