"""All settings with their defaults, typed and validated once.

A site writes `JOBSCHEDULER = {...}` in its settings; the standalone product fills it from the environment.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from jobs.conf import rules as rules
from jobs.conf.rules import InvalidSetting, Rule
from jobs.rates import MAX_BURST

NAME = "JOBSCHEDULER"
PRESETS: Mapping[str, Mapping[str, float]] = {
    "development": {"HEARTBEAT_SEC": 10, "LEASE_SEC": 60, "GRACE_SEC": 60},
    "production": {"HEARTBEAT_SEC": 30, "LEASE_SEC": 300, "GRACE_SEC": 60},
    "high_reliability": {"HEARTBEAT_SEC": 15, "LEASE_SEC": 180, "GRACE_SEC": 60},
}
KEYED_SCOPES = ("job_type", "resource", "tenant", "addon")
SECRET_NAMES = (  # also as parts of keys, see `jobs.redaction.is_secret_key`
    *("password", "passwd", "passphrase", "passcode", "passwords", "pwd", "db_pass", "smtp_pass", "user_pass"),
    *("secret", "secrets", "token", "bearer", "jwt", "otp", "signature", "credential", "credentials"),
    *("api_key", "api_keys", "access_key", "account_key", "encryption_key", "private_key", "secret_key"),
    *("session_key", "shared_key", "signing_key", "ssh_key", "authorization", "basic_auth"),
    *("cookie", "cookies", "session_id", "connection_string"),
)


class ProblemKind(StrEnum):
    UNKNOWN = "unknown"
    INVALID = "invalid"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True)
class SettingsProblem:
    """One error in the settings, as text for the site's developer."""

    kind: ProblemKind
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class LimitValues(NamedTuple):
    """One limit: how many jobs may be active at once, and start, or use tokens, in a time. Rates as `60/min`.

    `burst`: how many may start at once after a pause; None: one.
    """

    max: int | None = None
    rate: str = ""
    token_rate: str = ""
    burst: int | None = None


UNLIMITED, ONE_JOB = LimitValues(), LimitValues(1)


@dataclass(frozen=True)
class LimitSettings:
    """The limits. No entry: unlimited. `overall` is the scope "global"."""

    overall: LimitValues = ONE_JOB
    job_type: Mapping[str, LimitValues] = field(default_factory=dict)
    resource: Mapping[str, LimitValues] = field(default_factory=dict)
    tenant: Mapping[str, LimitValues] = field(default_factory=dict)
    addon: Mapping[str, LimitValues] = field(default_factory=dict)

    def get(self, scope: str, key: str = "") -> LimitValues:
        if scope == "global":
            return self.overall
        keyed: Mapping[str, LimitValues] = getattr(self, scope)
        return keyed.get(key, UNLIMITED)

    def items(self) -> Iterator[tuple[tuple[str, str], LimitValues]]:
        """Iterate over all limits by scope and key; the key of the global limit is empty."""
        if self.overall != UNLIMITED:
            yield ("global", ""), self.overall
        for scope in KEYED_SCOPES:
            for key, values in getattr(self, scope).items():
                yield (scope, key), values


def _parse_limits(raw: Mapping[Any, Any]) -> LimitSettings:
    for scope in raw:
        if scope != "global" and scope not in KEYED_SCOPES:
            raise InvalidSetting(
                f"knows the scopes global, {', '.join(KEYED_SCOPES)}, not {rules.describe_value(scope)}"
            )
    keyed: list[Mapping[str, LimitValues]] = []
    for scope in KEYED_SCOPES:
        named = raw.get(scope, {})
        if not isinstance(named, Mapping):
            raise InvalidSetting(f"[{scope}] {rules.build_rejection('a dict of names and limits', named)}")
        for key in named:
            if not isinstance(key, str) or not 1 <= len(key) <= 200 or not key.isprintable():
                raise InvalidSetting(f"[{scope}] needs names of 1 to 200 characters, not {rules.describe_value(key)}")
        limits = {key: _parse_limit(f"{scope}.{key}", values) for key, values in named.items()}
        keyed.append(MappingProxyType({key: values for key, values in limits.items() if values != UNLIMITED}))
    return LimitSettings(_parse_limit("global", raw.get("global")), *keyed)


def _parse_limit(path: str, raw: Any) -> LimitValues:
    """Parse one limit: a number is its maximum, a dict has the fields of `LimitValues`."""
    if not isinstance(raw, Mapping):
        return LimitValues(_parse_limit_value(path, "max", raw))
    for name in raw:
        if name not in _LIMIT_RULES:
            raise InvalidSetting(f"[{path}] knows {', '.join(_LIMIT_RULES)}, not {rules.describe_value(name)}")
    values = {name: _parse_limit_value(f"{path}.{name}", name, value) for name, value in raw.items()}
    if values.get("burst") is not None and not values.get("rate"):
        raise InvalidSetting(f"[{path}.burst] needs a rate")
    return LimitValues(**values)


def _parse_limit_value(path: str, name: str, value: Any) -> Any:
    try:
        return UNLIMITED._asdict()[name] if value is None else _LIMIT_RULES[name].accept(value)
    except InvalidSetting as error:
        raise InvalidSetting(f"[{path}] {error}") from None


_LIMIT_RULES = {
    "max": rules.integer(1, 2**31 - 1),
    "rate": rules.rate(),
    "token_rate": rules.rate(),
    "burst": rules.integer(1, MAX_BURST),
}


def setting(default: Any, rule: Rule, *, shown: bool = True) -> Any:
    return field(default=default, metadata={"rule": rule}, repr=shown)


@dataclass(frozen=True)
class Admission:
    """Parameters of the `Capacity` admission policy. Loads are per processor core."""

    capacity_max: int = setting(100, rules.integer(1, 100))  # cost units that may be active and reserved at once
    quiet_load: float = setting(0.3, rules.number(0, 1000))  # at or below: QUIET
    busy_load: float = setting(0.8, rules.number(0, 1000))  # at or above: BUSY; in between: NORMAL
    streak_sec: float = setting(30, rules.seconds(0))  # how long QUIET must have held before heavy jobs start
    max_cost_per_addon: int | None = setting(None, rules.integer(1, 100, optional=True))  # cost units of one addon
    deadline_near_sec: float = setting(300, rules.seconds(0))  # so near to its deadline, a job may start in NORMAL


SECONDS, SECONDS_OR_ZERO, FLAG, POLICY = rules.seconds(), rules.seconds(0), rules.flag(), rules.dotted_path()
BYTES, BULK, RETRIES = rules.integer(1024, 2**31 - 1), rules.integer(1, 1_000_000), rules.integer(0, 1000)
DIRECT_CALLS = rules.integer(1, 10_000)
DAYS = rules.number(0.01, 36_500, " of days", optional=True)
KEY = rules.text(r"(?s).{16,}", "text of at least 16 characters", optional=True, secret=True)
TOKEN_PREFIX = rules.text(  # a whole token that is given by mistake must not be quoted
    r"js_[A-Za-z0-9_-]{7}", "the prefix of an API token: its first 10 characters", optional=True, secret=True
)
PROXY_URL = rules.text(r"https?://[^\s/]+/?", "an http:// or https:// address", optional=True, secret=True)


@dataclass(frozen=True)
class Conf:
    PRESET: str | None = setting(None, rules.choice(*PRESETS, optional=True))

    HEARTBEAT_SEC: float = setting(2, SECONDS)
    LEASE_SEC: float = setting(30, SECONDS)
    GRACE_SEC: float = setting(10, SECONDS_OR_ZERO)
    RECOVERY_SEC: float = setting(2, SECONDS)  # default: HEARTBEAT_SEC
    SHUTDOWN_GRACE_SEC: float = setting(30, SECONDS_OR_ZERO)
    POLL_SEC: float = setting(1, SECONDS)
    CANCEL_TIMEOUT_SEC: float | None = setting(None, rules.seconds(optional=True))
    DISPATCH_TIMEOUT_SEC: float = setting(30, SECONDS)
    DIRECT_WAIT_SEC: float = setting(60, SECONDS_OR_ZERO)
    DIRECT_MAX_RUNTIME_SEC: float = setting(300, SECONDS)
    DIRECT_MAX: int = setting(4, DIRECT_CALLS)  # per process
    DIRECT_PER_TOKEN: int = setting(2, DIRECT_CALLS)  # over all processes

    LIMITS: LimitSettings = setting(LimitSettings(), rules.mapping(_parse_limits))  # noqa: RUF009
    CONCURRENCY_POLICY: str = setting("jobs.policies.concurrency.Limits", POLICY)
    ADMISSION_POLICY: str = setting("jobs.policies.admission.Open", POLICY)
    RETRY_POLICY: str = setting("jobs.policies.retry.ExponentialBackoff", POLICY)
    JOB_CONTEXT: str | None = setting(None, rules.dotted_path(optional=True))
    HANDLER_WRAPPER: str | None = setting(None, rules.dotted_path(optional=True))
    GROUP_FAILURE_POLICY: str = setting("jobs.policies.groups.OnFailure", POLICY)
    FAIRNESS_POLICY: str | None = setting(None, rules.dotted_path(optional=True))
    ADMISSION: Admission = setting(Admission(), rules.record(Admission))  # noqa: RUF009

    RETRY_MAX_RETRIES: int = setting(3, RETRIES)
    RETRY_BASE_SEC: float = setting(10, SECONDS_OR_ZERO)
    RETRY_MAX_SEC: float = setting(3600, SECONDS_OR_ZERO)
    RETRY_JITTER: float = setting(0, rules.number(0, 1))  # a fraction of the delay
    SNOOZE_MAX: int = setting(1000, rules.integer(0, 1_000_000))  # per job

    TOKEN_LIMIT: int | None = setting(None, rules.integer(0, 2**63 - 1, optional=True))
    LOG_LINES_PER_JOB: int = setting(1000, rules.integer(0, 1_000_000))
    RETENTION_DAYS: float | None = setting(None, DAYS)
    ACTIVITY_RETENTION_DAYS: float | None = setting(365, DAYS)  # None: activities are kept

    MAX_BODY_BYTES: int = setting(2**20, BYTES)
    BULK_BODY_BYTES: int = setting(32 * 2**20, BYTES)
    MAX_PARAMS_DEPTH: int = setting(32, rules.integer(1, 100))
    API_BULK_LIMIT: int = setting(10_000, BULK)
    CONSOLE_BULK_LIMIT: int = setting(3_000, BULK)
    API_LARGE_REQUESTS: int | None = setting(1, rules.integer(1, 1000, optional=True))  # per token and web process
    API_RATE_LIMIT: int | None = setting(6_000, rules.integer(1, 1_000_000, optional=True))  # per minute and token
    NUM_PROXIES: int = setting(0, rules.integer(0, 20))  # in front of the site, each appending to X-Forwarded-For

    SYSTEM_JOB_TYPES: bool = setting(False, FLAG)
    COMMAND_ALLOW: tuple[str, ...] = setting((), rules.names())
    METRICS_PUBLIC: bool = setting(False, FLAG)
    REDACT_KEYS: tuple[str, ...] = setting(SECRET_NAMES, rules.names())
    ADMIN_AUTOREGISTER: bool = setting(True, FLAG)
    AUTODISCOVER: tuple[str, ...] = setting(("jobs", "tasks"), rules.modules())
    LEGACY_SUNSET: date = setting(date(2027, 12, 31), rules.day())  # noqa: RUF009
    LEGACY_TOKEN: str | None = setting(None, TOKEN_PREFIX)  # as which clients without a token use the legacy paths

    WEBHOOK_ALLOW_PRIVATE: bool = setting(False, FLAG)
    WEBHOOK_TIMEOUT_SEC: float = setting(15, SECONDS)
    WEBHOOK_MAX_RETRIES: int = setting(3, RETRIES)
    WEBHOOK_BACKOFF_SEC: float = setting(10, SECONDS_OR_ZERO)
    WEBHOOK_MAX_PENDING: int = setting(10_000, rules.integer(1, 1_000_000))  # deliveries of one endpoint
    WEBHOOK_GIVE_UP_SEC: float = setting(3 * 24 * 3600, SECONDS)
    WEBHOOK_SECRET_KEY: str | None = setting(None, KEY, shown=False)  # None: derived from SECRET_KEY
    WEBHOOK_PORTS: tuple[int, ...] = setting((80, 443), rules.list_of(rules.integer(1, 65_535), "ports"))
    WEBHOOK_PROXY: str | None = setting(None, PROXY_URL, shown=False)


RULES: Mapping[str, Rule] = {setting.name: setting.metadata["rule"] for setting in fields(Conf)}
POLICY_KEYS = tuple(name for name in RULES if name.endswith("_POLICY"))
FUNCTION_KEYS = ("JOB_CONTEXT", "HANDLER_WRAPPER")


class SettingsResult(NamedTuple):
    """The settings as far as they are valid, and the errors in them."""

    conf: Conf
    problems: list[SettingsProblem]


def read_settings(raw: Any) -> SettingsResult:
    """Return the settings and the errors in them; a wrong value is replaced by its default. Never raises."""
    if not isinstance(raw, Mapping):
        problem = SettingsProblem(ProblemKind.INVALID, NAME, f"{NAME} {rules.build_rejection('a dict', raw)}.")
        return SettingsResult(Conf(), [problem])
    own_values, problems = _read_fields(Conf, raw, "")
    values = {**PRESETS.get(own_values.get("PRESET") or "", {}), **own_values}
    values.setdefault("RECOVERY_SEC", values.get("HEARTBEAT_SEC", Conf.HEARTBEAT_SEC))
    conf = Conf(**values)
    return SettingsResult(conf, [*problems, *_find_contradictions(conf, {problem.key for problem in problems})])


def _read_fields(record: type, raw: Mapping[Any, Any], prefix: str) -> tuple[dict[str, Any], list[SettingsProblem]]:
    rules_by_name: dict[str, Rule] = {setting.name: setting.metadata["rule"] for setting in fields(record)}
    values: dict[str, Any] = {}
    problems: list[SettingsProblem] = []
    for key, value in raw.items():
        if key not in rules_by_name:
            key_text = key if isinstance(key, str) else rules.describe_value(key)
            names_by_upper = {name.upper(): name for name in rules_by_name}
            matches = difflib.get_close_matches(key_text[:60].upper(), names_by_upper, 1)
            hint = f"Did you mean {prefix}{names_by_upper[matches[0]]}?" if matches else ""
            message = f"{NAME} has no key {rules.describe_value(prefix + key_text)}."
            problems.append(SettingsProblem(ProblemKind.UNKNOWN, f"{prefix}{key_text}", message, hint))
            continue
        rule = rules_by_name[key]
        try:
            values[key] = None if value is None and rule.optional else rule.accept(value)
        except InvalidSetting as error:
            problems.append(SettingsProblem(ProblemKind.INVALID, f"{prefix}{key}", f"{NAME}: {prefix}{key} {error}."))
            continue
        if rule.record is not None:
            inner_values, inner_problems = _read_fields(rule.record, values[key], f"{prefix}{key}.")
            values[key] = rule.record(**inner_values)
            problems += inner_problems
    return values, problems


def _find_contradictions(conf: Conf, invalid_keys: set[str]) -> Iterator[SettingsProblem]:
    """Yield the problems of valid keys that contradict each other, except those that are invalid already."""
    beat, lease, admission = conf.HEARTBEAT_SEC, conf.LEASE_SEC, conf.ADMISSION
    if beat * 4 > lease and invalid_keys.isdisjoint({"HEARTBEAT_SEC", "LEASE_SEC", "PRESET"}):
        message = f"{NAME}: HEARTBEAT_SEC is {beat:g}, more than a quarter of LEASE_SEC, which is {lease:g}."
        hint = "A lease must survive lost heartbeats: raise LEASE_SEC or lower HEARTBEAT_SEC."
        yield SettingsProblem(ProblemKind.HEARTBEAT, "HEARTBEAT_SEC", message, hint)
    loads = {"ADMISSION.quiet_load", "ADMISSION.busy_load"}
    if admission.quiet_load >= admission.busy_load and invalid_keys.isdisjoint(loads):
        message = f"{NAME}: ADMISSION.quiet_load must be below ADMISSION.busy_load."
        yield SettingsProblem(ProblemKind.INVALID, "ADMISSION.quiet_load", message)


# Kubernetes sets variables with our prefix in every container if a service is called "jobscheduler".
SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")


def from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the `JOBSCHEDULER_<KEY>` variables as a settings dict; the system check reports wrong values."""
    prefix = f"{NAME}_"
    values: dict[str, Any] = {}
    for name, value in environ.items():
        key, text = name.removeprefix(prefix), value.strip()
        if not name.startswith(prefix) or SERVICE_LINK.fullmatch(key) or (key == "PORT" and "://" in text):
            continue
        parsed = RULES[key].parse(text) if key in RULES else text
        is_none = key in RULES and text.lower() in ("", "none") and parsed != ()
        values[key] = None if is_none else parsed
    return values


if TYPE_CHECKING:
    _Typed = Conf
else:
    _Typed = object


class LazyConf(_Typed):
    """The settings as attributes (`conf.LEASE_SEC`), read at first use and cached until the settings change."""

    def __getattr__(self, name: str) -> Any:
        if name not in RULES:
            raise AttributeError(f"There is no setting {name}")
        return getattr(self.current(), name)

    def current(self) -> Conf:
        cached: Conf | None = self.__dict__.get("_current")
        if cached is not None:
            return cached
        loaded, problems = read_settings(get_raw_settings())
        if problems:
            raise ImproperlyConfigured(" ".join(map(str, problems)))
        self.__dict__.update({name: getattr(loaded, name) for name in RULES}, _current=loaded)
        return loaded

    def policy(self, key: str) -> Any:
        """Return the policy object that a key names, created once; None if the setting is None."""
        policies = self.__dict__.setdefault("_policies", {})
        if key not in policies:
            policies.setdefault(key, build_policy(key, getattr(self, key)))
        return policies[key]

    def function(self, key: str) -> Callable[..., Any] | None:
        """Return the function that a key names, imported once; None if the setting is None."""
        functions = self.__dict__.setdefault("_functions", {})
        if key not in functions:
            functions.setdefault(key, import_function(key, getattr(self, key)))
        return functions[key]

    def reset(self) -> None:
        self.__dict__.clear()


def get_raw_settings() -> Any:
    """Return the site's setting as it is written, without validation."""
    return getattr(settings, NAME, {})


def build_policy(key: str, path: str | None) -> Any:
    if path is None:
        return None
    try:
        return import_string(path)()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ImproperlyConfigured(f"{NAME}: {key} {path!r} cannot be used ({reason}).") from error


def import_function(key: str, path: str | None) -> Callable[..., Any] | None:
    if path is None:
        return None
    try:
        function = import_string(path)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ImproperlyConfigured(f"{NAME}: {key} {path!r} cannot be used ({reason}).") from error
    if not callable(function):
        raise ImproperlyConfigured(f"{NAME}: {key} {path!r} cannot be used (it is not callable).")
    return function


conf = LazyConf()
policy = conf.policy


def _reset_on_change(*, setting: str, **kwargs: Any) -> None:
    if setting == NAME:
        conf.reset()


setting_changed.connect(_reset_on_change, dispatch_uid="jobs.conf")
