"""The pages of docs/reference/: every setting and every command, read from the code. `docs/generate.py` writes them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from jobs.conf import PRESETS, Conf
from jobs.conf.rules import InvalidSetting, Rule

NOTICE = "<!-- Generated from {} by docs/generate.py: edit there, then `make docs`. -->"
GROUPS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks", "jobscheduler")
EVERYWHERE = {
    "help",
    "version",
    "verbosity",
    "settings",
    "pythonpath",
    "traceback",
    "no_color",
    "force_color",
    "skip_checks",
}
WORDS = {
    "PRESET": "Heartbeat, lease and grace by one word; single keys win over it.",
    "HEARTBEAT_SEC": "How often a worker renews the leases of its jobs. At most a quarter of LEASE_SEC.",
    "LEASE_SEC": "How long a job stays its worker's without a heartbeat.",
    "GRACE_SEC": "How long after the end of a lease others wait before they take the job for lost.",
    "RECOVERY_SEC": "How often workers look for lost jobs. As HEARTBEAT_SEC, unless set.",
    "SHUTDOWN_GRACE_SEC": "How long a worker that was requested to stop waits for its handlers before it stops them.",
    "POLL_SEC": "How often idle workers look for jobs on SQLite and without notifications; ten times as long where PostgreSQL notifies them.",
    "CANCEL_TIMEOUT_SEC": "After so long a handler that ignores a stop is ended, if it runs in a process (`worker --executor process`); one in a thread cannot be ended, and the worker warns of that at its start. None: never.",
    "DISPATCH_TIMEOUT_SEC": "How long an offered job is reserved for a remote worker.",
    "DIRECT_WAIT_SEC": "How long a direct call waits for a slot.",
    "DIRECT_MAX_RUNTIME_SEC": "How long a direct call through the API may run: then 504, and its slot is free.",
    "DIRECT_MAX": "Direct calls through the API that one process runs or keeps waiting at once. Must be below the number of its threads.",
    "DIRECT_PER_TOKEN": "Direct calls of one token at once, over all processes.",
    "LIMITS": 'How many jobs may be active at once: `{"global": 4, "resource": {"gpu": 1}}`; scopes global, job_type, resource, tenant, addon. What is absent is unlimited. Instead of a number, `{"max": 8, "rate": "60/min", "token_rate": "90000/min", "burst": 5}` limits starts and tokens in a time, too.',
    "CONCURRENCY_POLICY": "What limits mean. See dispatch.md.",
    "ADMISSION_POLICY": "Whether a job may start now. See dispatch.md.",
    "JOB_CONTEXT": "A function without arguments that returns a small dict; it travels with each job that is submitted, as `ctx.context`.",
    "HANDLER_WRAPPER": "A function of `ctx` that returns a context manager; every call of a handler runs within it.",
    "RETRY_POLICY": "Whether and when a failed job is retried.",
    "GROUP_FAILURE_POLICY": "What a failed member of a sequential group does to the rest.",
    "FAIRNESS_POLICY": "Aging and fair shares. None: strictly by priority and position.",
    "ADMISSION": "Parameters of the capacity policy, below.",
    "RETRY_MAX_RETRIES": "Automatic retries after the first run, unless handler, template or submission say otherwise.",
    "RETRY_BASE_SEC": "The first retry waits so long, each further one twice as long.",
    "RETRY_MAX_SEC": "No retry waits longer.",
    "RETRY_JITTER": "Spreads retries: a fraction of the delay.",
    "SNOOZE_MAX": "How often a job may be snoozed; at the next time it fails.",
    "TOKEN_LIMIT": "Tokens a job may use, unless it says otherwise.",
    "LOG_LINES_PER_JOB": "So many lines of a job's log are kept.",
    "RETENTION_DAYS": "Ended chains and groups are deleted after so many days. None: never.",
    "ACTIVITY_RETENTION_DAYS": "Activities are deleted after so many days. None: never.",
    "MAX_BODY_BYTES": "The largest request body.",
    "BULK_BODY_BYTES": "The largest body of bulk and group submissions.",
    "MAX_PARAMS_DEPTH": "How deep params may be nested.",
    "API_BULK_LIMIT": "Jobs in one bulk or group submission.",
    "API_LARGE_REQUESTS": (
        "Bulk submissions, groups and group actions that one token may have in progress in one web process; more are "
        "answered with 429. None: no limit. On SQLite the next one begins after a rest as long as the last one took, 5 s "
        "at most."
    ),
    "CONSOLE_BULK_LIMIT": "Jobs that one action of the console takes.",
    "API_RATE_LIMIT": "Requests per minute and token, over all processes. None: no limit, neither for requests with unknown tokens.",
    "NUM_PROXIES": "Proxies in front of the site, each of which appends to X-Forwarded-For. Log lines and the limits of failures name the address that the outermost one has seen. 0: that of the connection.",
    "SYSTEM_JOB_TYPES": "Whether system.command and system.http exist. See system-jobs.md.",
    "COMMAND_ALLOW": "The management commands that system.command may run.",
    "METRICS_PUBLIC": "Whether /metrics needs no token.",
    "REDACT_KEYS": "Names whose values are masked wherever params, artifacts and events are shown; also as words within a key (`X-Gitlab-Token`).",
    "ADMIN_AUTOREGISTER": "Whether the console is registered with the default admin site.",
    "AUTODISCOVER": "Modules of each app that are imported for their handlers.",
    "LEGACY_SUNSET": "The day the legacy paths say they will be gone.",
    "LEGACY_TOKEN": "The prefix of the API token as which clients without credentials use the legacy paths: every caller that reaches these paths can do there what this token can. None: such clients get 401. See api.md.",
    "WEBHOOK_ALLOW_PRIVATE": "Lets webhooks and system.http reach private addresses and any port. For development.",
    "WEBHOOK_TIMEOUT_SEC": "For one delivery, all in all.",
    "WEBHOOK_MAX_RETRIES": "Attempts after the first.",
    "WEBHOOK_BACKOFF_SEC": "The first retry of a delivery waits so long, each further one twice as long.",
    "WEBHOOK_MAX_PENDING": "Deliveries that may wait for an endpoint. Further ones end FAILED, and can be resent.",
    "WEBHOOK_GIVE_UP_SEC": "An endpoint that has done nothing but fail for so long is disabled.",
    "WEBHOOK_SECRET_KEY": "Encrypts the secrets of endpoints at rest. None: SECRET_KEY does.",
    "WEBHOOK_PORTS": "Ports that a webhook may go to.",
    "WEBHOOK_PROXY": "An egress proxy for webhooks and system.http.",
    "capacity_max": "Cost units that may be active and reserved at once.",
    "quiet_load": "At or below this load per core the machine is QUIET.",
    "busy_load": "At or above it is BUSY; in between NORMAL.",
    "streak_sec": "How long QUIET must have held before heavy jobs start.",
    "max_cost_per_addon": "Cost units of one addon.",
    "deadline_near_sec": "This close to its deadline a job may start in NORMAL.",
}


def settings_page() -> str:
    return "\n".join([*_settings_opening(), *_table(Conf), "", *_presets(), "", *_admission()]) + "\n"


def commands_page() -> str:
    """Asks for Django to be set up."""
    return "\n".join([*_commands_opening(), *(line for name in sorted(_commands()) for line in _command(name))])


def _settings_opening() -> Iterable[str]:
    yield NOTICE.format("jobs/conf/__init__.py")
    yield "# Settings"
    yield ""
    yield "`JOBSCHEDULER = {...}` in a site's settings; every key is optional. In the standalone product `LEASE_SEC` is the environment variable"
    yield "`JOBSCHEDULER_LEASE_SEC`: lists with commas, dicts as JSON. A key that does not exist or a value that does not fit is an error of `manage.py check`."
    yield ""


def _table(record: type) -> Iterable[str]:
    yield "| key | default | accepts | |"
    yield "|---|---|---|---|"
    for setting in fields(record):
        rule: Rule = setting.metadata["rule"]
        accepts = _describe_rule(rule)
        yield f"| `{setting.name}` | {_default(setting.default)} | {accepts} | {WORDS[setting.name]} |".replace(
            "|  |", "| |"
        )


def _default(value: Any) -> str:
    if is_dataclass(value):
        return "below" if hasattr(value, "capacity_max") else '`{"global": 1}`'
    if isinstance(value, tuple) and len(value) > 5:
        return "common secret names"
    return f"`{value}`"


def _describe_rule(rule: Rule) -> str:
    """Describe what a rule accepts, in the words of its error."""
    try:
        rule.accept(object())
    except InvalidSetting as refusal:
        words = str(refusal).rpartition(", not ")[0].removeprefix("must be ")
        return f"{words}, or None" if rule.optional else words
    raise AssertionError("a rule that accepts anything")


def _presets() -> Iterable[str]:
    yield "## Presets"
    yield ""
    yield "| PRESET | HEARTBEAT_SEC | LEASE_SEC | GRACE_SEC |"
    yield "|---|---|---|---|"
    for name, values in PRESETS.items():
        yield f"| `{name}` | {values['HEARTBEAT_SEC']} | {values['LEASE_SEC']} | {values['GRACE_SEC']} |"


def _admission() -> Iterable[str]:
    from jobs.conf import Admission

    yield "## ADMISSION"
    yield ""
    yield from _table(Admission)


def _commands_opening() -> Iterable[str]:
    yield NOTICE.format("the commands themselves")
    yield "# Commands"
    yield ""
    yield "Each is also `manage.py jobscheduler COMMAND`, where another app owns its name. Exit codes: 0 done, 1 refused or not found, 2 bad input."
    yield ""


def _commands() -> dict[str, str]:
    from django.apps import apps
    from django.core.management import find_commands

    ours = [config for config in apps.get_app_configs() if config.label in GROUPS]
    return {name: config.name for config in ours for name in find_commands(os.path.join(config.path, "management"))}


def _command(name: str) -> Iterable[str]:
    from django.core.management import load_command_class

    command = load_command_class(_commands()[name], name)
    parser = command.create_parser("manage.py", name)
    yield f"## {name}"
    yield ""
    yield str(command.help)
    yield ""
    yield from _options(parser)
    for verb, help_text, inner in _verbs(parser):
        yield f"### {name} {verb}"
        yield ""
        yield help_text
        yield ""
        yield from _options(inner)


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield from ((verb, helps.get(verb, ""), inner) for verb, inner in action.choices.items())


def _options(parser: argparse.ArgumentParser) -> Iterable[str]:
    shown = [action for action in parser._actions if _is_shown(action)]
    if shown:
        yield "| | |"
        yield "|---|---|"
        yield from (f"| `{_format_option(action)}` | {_help(action)} |" for action in shown)
        yield ""


def _is_shown(action: argparse.Action) -> bool:
    hidden = action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction)
    return not hidden and action.dest not in EVERYWHERE


def _format_option(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else None
    if value is None:
        value = action.dest.upper() if action.choices is None else "|".join(map(str, action.choices))
    takes = [] if action.option_strings and action.nargs == 0 else [value.replace("|", "\\|")]
    return " ".join([*filter(None, [", ".join(action.option_strings)]), *takes])


def _help(action: argparse.Action) -> str:
    return str(action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%").replace("|", "\\|")
