"""The search of the job list: words, and terms such as `type:mail.*` that name what they search.

A term becomes a condition with an index, or a check. Of checks, the list reads at most CHECK_LIMIT rows: see
`jobs.admin.jobs.JobChangeList`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Left
from django.db.models.lookups import Exact
from django.utils.translation import gettext as _

from jobs import db
from jobs.admin.base import COUNT_LIMIT, SearchTerm, parse_uuid
from jobs.admin.filters import TABS, filter_by_status, get_statuses
from jobs.models import Job, JobEvent, JobGroup, JobRun, JobTag
from jobs.models.expressions import SqlLiteral, is_one_of, sql_literals
from jobs.models.job import RARE_STATUSES
from jobs.models.run import JOB_ID_TAIL
from jobs.states import EventKind, Status

CHECK_LIMIT = 10_000  # rows that a search without an index looks at
NAMES_LIMIT = 50  # names that one beginning stands for
WORD_LIMIT = 2000  # jobs that a word finds by each of its meanings, if it has several
TAIL_LENGTH = 12
MIN_PREFIX = 4  # characters of an id
QUALIFIERS = (
    *("type", "target", "tag", "resource", "tenant", "status", "worker", "group", "schedule", "key", "error"),
    "addon",
)
_HEX = re.compile(r"[0-9a-f]+")


@dataclass
class JobSearch:
    """The jobs that the terms find: `rows` by indexes, of which `checks` are read one by one."""

    rows: QuerySet[Any]
    can_view_payload: bool
    checks: list[Q] = field(default_factory=list)
    problem: str = ""

    def add(self, term: SearchTerm) -> None:
        """Narrow the rows by a term. A problem is a message for the user; nothing is found then."""
        if not term.value.rstrip("*"):
            self._refuse(_("Enter what to search for after “%s:”.") % term.name)
        elif not term.name:
            self._add_word(term.value)
        else:
            _ADD[term.name](self, term.value)

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.rows = self.rows.none()

    def _filter(self, condition: Q) -> None:
        self.rows = self.rows.filter(condition)

    def _add_word(self, word: str) -> None:
        """Find an id by its beginning or its end, or a type, a target or a tag by its beginning."""
        prefix = word.rstrip("*")
        if (condition := self._id_condition(prefix.lstrip("#…"))) is not None:
            self._filter(condition)
            return
        of_type = limit_rows(Job.objects.order_by("-pk"), CHECK_LIMIT).filter(_starts_with("job_type", prefix))
        targets, tags = find_names(Job, "target", prefix), find_names(JobTag, "tag", prefix)
        has_type = of_type.order_by().exists()
        if has_type and not targets and not tags:
            self.checks.append(_starts_with("job_type", prefix))
        elif targets and not has_type and not tags:
            self._filter(Q(target__in=targets))
        elif tags and not has_type and not targets:
            self._filter(_tag_condition(tags))
        else:
            found = [_read_newest_ids(of_type, WORD_LIMIT)] if has_type else []
            found += [_read_newest_ids(Job.objects.filter(target__in=targets), WORD_LIMIT)] if targets else []
            found += [_read_newest_ids(Job.objects.filter(_tag_condition(tags)), WORD_LIMIT)] if tags else []
            self._filter(Q(pk__in={pk for ids in found for pk in ids}))

    def _id_condition(self, text: str) -> Q | None:
        """Return the condition for a whole id, or for the beginning or the end of one that exists."""
        if (key := parse_uuid(text)) is not None:
            return Q(pk=key)
        digits = text.lower().replace("-", "")
        if not MIN_PREFIX <= len(digits) < 32 or not _HEX.fullmatch(digits):
            return None
        first, last = (UUID(hex=digits.ljust(32, fill)) for fill in "0f")
        conditions = [Q(pk__range=(first, last))]
        if len(digits) == TAIL_LENGTH:
            submissions = JobEvent.objects.filter(kind=SqlLiteral(str(EventKind.SUBMITTED)))
            ids = submissions.filter(Exact(JOB_ID_TAIL, Value(digits))).values_list("job_id", flat=True)
            conditions.insert(0, Q(pk__in=list(ids[:NAMES_LIMIT])))
        return next((condition for condition in conditions if Job.objects.filter(condition).order_by().exists()), None)

    def _add_type(self, value: str) -> None:
        self.checks.append(_matches("job_type", value))

    def _add_target(self, value: str) -> None:
        if value.endswith("*"):
            self._filter(Q(target__in=self._find_names(Job, "target", value)))
        else:
            self._filter(Q(target=value))

    def _add_tag(self, value: str) -> None:
        self._filter(_tag_condition(self._find_names(JobTag, "tag", value) if value.endswith("*") else [value]))

    def _find_names(self, model: Any, column: str, value: str) -> list[str]:
        names = find_names(model, column, value[:-1])
        if len(names) > NAMES_LIMIT:
            self.problem = _("“%(value)s” stands for more than %(limit)d names; only the first are searched.") % {
                "value": value,
                "limit": NAMES_LIMIT,
            }
        return names[:NAMES_LIMIT]

    def _add_tenant(self, value: str) -> None:
        if value == "default" or value.endswith("*"):
            self.checks.append(_matches("tenant", value))
        else:  # the condition of the partial index, and the value
            self._filter(~Q(tenant=SqlLiteral("default")) & Q(tenant=value))

    def _add_status(self, value: str) -> None:
        chosen = {name.lower(): name for name in (*map(str, Status), *TABS)}
        status = chosen.get(value.lower())
        if status is None or not get_statuses(status):
            known = ", ".join(sorted(chosen))
            self._refuse(
                _("There is no status “%(value)s”: choose one of %(known)s.") % {"value": value, "known": known}
            )
        else:
            self.rows = filter_by_status(self.rows, status)

    def _add_worker(self, value: str) -> None:
        name = value.rstrip("*")
        running = Q(status__in=sql_literals([Status.RUNNING])) & _starts_with("lease_owner", name)
        runs = limit_rows(JobRun.objects.order_by("-pk"), CHECK_LIMIT).filter(_matches("worker", value))
        self.checks.append(running | Q(pk__in=runs.order_by().values("pk")))

    def _add_group(self, value: str) -> None:
        key = parse_uuid(value)
        groups = Q(pk=key) if key is not None else _matches("name", value)
        self._filter(Q(group__in=_read_newest_ids(JobGroup.objects.filter(groups), NAMES_LIMIT)))

    def _add_schedule(self, value: str) -> None:
        model: Any = Job._meta.get_field("schedule").related_model
        key = parse_uuid(value)
        schedules = Q(pk=key) if key is not None else _matches("name", value)
        self._filter(Q(schedule__in=_read_newest_ids(model.objects.filter(schedules), NAMES_LIMIT)))

    def _add_key(self, value: str) -> None:
        if value.endswith("*"):
            self.checks.append(_matches("idempotency_key", value))
        else:
            tenants = find_names(Job, "tenant", "", "idempotency_key IS NOT NULL", 1000)
            self._filter(Q(tenant__in=tenants, idempotency_key=value))

    def _add_error(self, value: str) -> None:
        """Find failed jobs by a part of their error."""
        if not self.can_view_payload:
            self._refuse(_("Searching errors requires the permission “Can see params, artifacts and logs”."))
            return
        self._filter(is_one_of("status", RARE_STATUSES) & Q(status=Status.FAILED))
        self.checks.append(Q(status_reason__icontains=value.strip("*")))


_ADD: dict[str, Callable[[JobSearch, str], None]] = {
    "type": JobSearch._add_type,
    "target": JobSearch._add_target,
    "tag": JobSearch._add_tag,
    "resource": lambda search, value: search.checks.append(_matches("resource", value)),
    "tenant": JobSearch._add_tenant,
    "status": JobSearch._add_status,
    "worker": JobSearch._add_worker,
    "group": JobSearch._add_group,
    "schedule": JobSearch._add_schedule,
    "key": JobSearch._add_key,
    "error": JobSearch._add_error,
    "addon": lambda search, value: search.checks.append(_matches("addon_id", value)),
}


def is_tag_or_target(word: str) -> bool:
    """Return whether a tag or a target begins so, such as the tag "customer:acme", whose colon ends no qualifier."""
    prefix = word.rstrip("*")
    return bool(find_names(JobTag, "tag", prefix, limit=1) or find_names(Job, "target", prefix, limit=1))


def limit_rows(rows: QuerySet[Any], limit: int) -> QuerySet[Any]:
    """Return the first rows of an ordered list, to be filtered further.

    In the order of ids they are a range of them: for a subquery with a limit PostgreSQL reads the whole table.
    """
    order, first_ids = tuple(rows.query.order_by), rows.values("pk")[:limit]
    is_by_id = order in (("-pk",), ("pk",))
    last = next(iter(rows.values_list("pk", flat=True)[limit - 1 : limit]), None) if is_by_id else None
    if last is None:
        return rows.filter(pk__in=first_ids)
    return rows.filter(pk__gte=last) if order == ("-pk",) else rows.filter(pk__lte=last)


def find_names(model: Any, column: str, prefix: str, condition: str = "", limit: int = NAMES_LIMIT) -> list[str]:
    """Return the values of an indexed column that begin with a prefix, up to one more than `limit`.

    Each costs one look into the index, however many rows have it.
    """
    where = f"AND {condition}" if condition else ""
    next_name = f"SELECT {column} FROM {model._meta.db_table} WHERE {column} {{}} {where} ORDER BY {column} LIMIT 1"  # noqa: S608
    sql = f"""
        WITH RECURSIVE name (value) AS (
            SELECT ({next_name.format(">= %s")})
            UNION ALL
            SELECT ({next_name.format("> name.value")}) FROM name
            WHERE name.value IS NOT NULL AND substr(name.value, 1, %s) = %s
        )
        SELECT value FROM name WHERE value IS NOT NULL AND substr(value, 1, %s) = %s LIMIT {limit + 1}
    """  # noqa: S608 — names of tables and columns only
    with db.connection().cursor() as cursor:
        cursor.execute(sql, [prefix, len(prefix), prefix, len(prefix), prefix])
        return [value for (value,) in cursor.fetchall()]


def _tag_condition(tags: list[str]) -> Q:
    """Return the condition for the newest jobs with one of these tags."""
    rows = JobTag.objects.filter(tag__in=tags).order_by("-job_id").values("job_id")
    return Q(pk__in=(rows if len(tags) == 1 else rows.distinct())[: COUNT_LIMIT + 1])


def _read_newest_ids(rows: QuerySet[Any], limit: int) -> list[UUID]:
    return list(rows.order_by("-pk").values_list("pk", flat=True)[:limit])


def _matches(name: str, value: str) -> Q:
    """Return the condition that a column has a value, or begins with one that ends in a star."""
    return _starts_with(name, value[:-1]) if value.endswith("*") else Q(**{name: value})


def _starts_with(name: str, prefix: str) -> Q:
    """Return a case-sensitive condition on both databases: LIKE ignores case on SQLite."""
    return Q(Exact(Left(name, len(prefix)), Value(prefix)))
