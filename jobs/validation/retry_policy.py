"""Parse the retry policy of a job: when and how often it is retried. Settings apply to what it does not name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.utils.translation import gettext as _

from jobs.conf.rules import YEAR_SEC
from jobs.errors import InvalidInput
from jobs.validation import fields

MAX_BACKOFF = 1000
parse_delay = partial(fields.parse_number, minimum=0, maximum=YEAR_SEC)
VALIDATORS: dict[str, Callable[[Any, Any], Any]] = {
    "max_attempts": partial(fields.parse_integer, minimum=0, maximum=1000),
    "base_sec": parse_delay,
    "backoff": partial(fields.parse_number, minimum=1, maximum=MAX_BACKOFF),
    "max_sec": parse_delay,
    "jitter": partial(fields.parse_number, minimum=0, maximum=1),
}
# The same in Python, where they are options of `@job(…)` and of `using(…)`.
RETRY_OPTIONS = {
    "retry_delay": "base_sec",
    "retry_backoff": "backoff",
    "retry_max_delay": "max_sec",
    "retry_jitter": "jitter",
}


def parse_retry_policy(value: Any, field: fields.Field = "retry_policy") -> dict[str, Any]:
    """Validate `max_attempts`, `base_sec`, `backoff`, `max_sec` and `jitter`; leave out those that are None."""
    policy = fields.parse_json_object(value, field)
    path = [field] if isinstance(field, str) else list(field)
    for name in policy:
        if name not in VALIDATORS:
            raise InvalidInput([*path, name[:100]], _("is not one of %s") % ", ".join(VALIDATORS), "extra_forbidden")
    return {name: VALIDATORS[name](item, [*path, name]) for name, item in policy.items() if item is not None}


def merge_retry_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return submission fields with the retry options among them as `retry_policy`; an option takes precedence."""
    options = {name: value for name, value in values.items() if name in RETRY_OPTIONS and value is not None}
    merged = {name: value for name, value in values.items() if name not in RETRY_OPTIONS}
    if options:
        given = {RETRY_OPTIONS[name]: parse_retry_option(value, name) for name, value in options.items()}
        policy = merged.get("retry_policy")
        merged["retry_policy"] = {**({} if policy is None else parse_retry_policy(policy)), **given}
    return merged


def parse_retry_option(value: Any, name: str) -> Any:
    """Validate one option; errors name it as it was given."""
    return VALIDATORS[RETRY_OPTIONS[name]](value, name)
