"""The settings: their defaults, what they refuse, and how they are read from the environment."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import UTC, date, datetime
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from jobs.conf import (
    PRESETS,
    RULES,
    Admission,
    Conf,
    LimitSettings,
    LimitValues,
    ProblemKind,
    conf,
    from_environ,
    policy,
    read_settings,
)
from tests.support.param_ids import make_test_id

pytestmark = pytest.mark.once

DEFAULTS = {
    "PRESET": None,
    "HEARTBEAT_SEC": 2,
    "LEASE_SEC": 30,
    "GRACE_SEC": 10,
    "RECOVERY_SEC": 2,
    "SHUTDOWN_GRACE_SEC": 30,
    "POLL_SEC": 1,
    "CANCEL_TIMEOUT_SEC": None,
    "DISPATCH_TIMEOUT_SEC": 30,
    "DIRECT_WAIT_SEC": 60,
    "DIRECT_MAX_RUNTIME_SEC": 300,
    "DIRECT_MAX": 4,
    "DIRECT_PER_TOKEN": 2,
    "LIMITS": LimitSettings(overall=LimitValues(1)),
    "CONCURRENCY_POLICY": "jobs.policies.concurrency.Limits",
    "ADMISSION_POLICY": "jobs.policies.admission.Open",
    "RETRY_POLICY": "jobs.policies.retry.ExponentialBackoff",
    "GROUP_FAILURE_POLICY": "jobs.policies.groups.OnFailure",
    "FAIRNESS_POLICY": None,
    "RETRY_MAX_RETRIES": 3,
    "RETRY_BASE_SEC": 10,
    "RETRY_MAX_SEC": 3600,
    "RETRY_JITTER": 0,
    "SNOOZE_MAX": 1000,
    "JOB_CONTEXT": None,
    "HANDLER_WRAPPER": None,
    "TOKEN_LIMIT": None,
    "LOG_LINES_PER_JOB": 1000,
    "RETENTION_DAYS": None,
    "ACTIVITY_RETENTION_DAYS": 365,
    "MAX_BODY_BYTES": 1_048_576,
    "BULK_BODY_BYTES": 33_554_432,
    "MAX_PARAMS_DEPTH": 32,
    "API_BULK_LIMIT": 10_000,
    "CONSOLE_BULK_LIMIT": 3_000,
    "API_RATE_LIMIT": 6_000,
    "API_LARGE_REQUESTS": 1,
    "NUM_PROXIES": 0,
    "ADMISSION": Admission(100, 0.3, 0.8, 30, None, 300),
    "SYSTEM_JOB_TYPES": False,
    "COMMAND_ALLOW": (),
    "METRICS_PUBLIC": False,
    "ADMIN_AUTOREGISTER": True,
    "AUTODISCOVER": ("jobs", "tasks"),
    "LEGACY_TOKEN": None,
    "WEBHOOK_ALLOW_PRIVATE": False,
    "WEBHOOK_TIMEOUT_SEC": 15,
    "WEBHOOK_MAX_RETRIES": 3,
    "WEBHOOK_BACKOFF_SEC": 10,
    "WEBHOOK_MAX_PENDING": 10_000,
    "WEBHOOK_GIVE_UP_SEC": 3 * 24 * 3600,
    "WEBHOOK_SECRET_KEY": None,
    "WEBHOOK_PORTS": (80, 443),
    "WEBHOOK_PROXY": None,
}


class Counted:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1


class NeedsArguments:
    def __init__(self, something: object) -> None:
        self.something = something


def read_well(raw: dict[str, Any]) -> Conf:
    accepted, problems = read_settings(raw)
    assert problems == []
    return accepted


def test_nothing_configured_means_the_documented_defaults() -> None:
    accepted = read_well({})
    assert {name: getattr(accepted, name) for name in DEFAULTS} == DEFAULTS
    assert {"password", "token", "secret", "authorization"} <= set(accepted.REDACT_KEYS)
    assert isinstance(accepted.LEGACY_SUNSET, date)
    assert {field.name for field in fields(Conf)} == {*DEFAULTS, "REDACT_KEYS", "LEGACY_SUNSET"}


def test_every_default_would_be_accepted_if_it_were_written_down() -> None:
    structured = {"LIMITS", "ADMISSION"}
    written = {name: value for name, value in vars(Conf()).items() if name not in structured}
    assert read_well(written) == Conf()


def test_the_settings_cannot_be_changed_in_passing() -> None:
    with pytest.raises(FrozenInstanceError):
        Conf().LEASE_SEC = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("preset", "beat", "lease"), [("development", 10, 60), ("production", 30, 300), ("high_reliability", 15, 180)]
)
def test_a_preset_sets_heartbeat_lease_and_grace(preset: str, beat: float, lease: float) -> None:
    accepted = read_well({"PRESET": preset})
    found = [getattr(accepted, f"{name}_SEC") for name in ("HEARTBEAT", "LEASE", "GRACE", "RECOVERY")]
    assert found == [beat, lease, 60, beat]


def test_a_single_key_wins_over_the_preset() -> None:
    accepted = read_well({"PRESET": "production", "GRACE_SEC": 5, "HEARTBEAT_SEC": 20})
    assert (accepted.HEARTBEAT_SEC, accepted.LEASE_SEC, accepted.GRACE_SEC) == (20, 300, 5)


def test_recovery_runs_with_the_heartbeat_unless_set() -> None:
    assert read_well({"HEARTBEAT_SEC": 5}).RECOVERY_SEC == 5
    assert read_well({"HEARTBEAT_SEC": 5, "RECOVERY_SEC": 7}).RECOVERY_SEC == 7


@pytest.mark.parametrize("raw", [None, [], "LEASE_SEC", 3, {("LEASE_SEC", 30)}])
def test_settings_that_are_no_dict_are_a_problem(raw: Any) -> None:
    accepted, problems = read_settings(raw)
    assert accepted == Conf()
    assert [problem.kind for problem in problems] == [ProblemKind.INVALID]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("LEASE_SECS", "Did you mean LEASE_SEC?"),
        ("lease_sec", "Did you mean LEASE_SEC?"),
        ("WEBHOOK_PORT", "Did you mean WEBHOOK_PORTS?"),
        ("SOMETHING_ELSE_ENTIRELY", ""),
        ("", ""),
        ("x" * 100_000, ""),
        (7, ""),
        (None, ""),
        (("LEASE_SEC",), ""),
    ],
    ids=make_test_id,
)
def test_an_unknown_key_is_named_with_the_nearest_one(key: Any, hint: str) -> None:
    _, problems = read_settings({key: 1})
    assert [(problem.kind, problem.hint) for problem in problems] == [(ProblemKind.UNKNOWN, hint)]
    assert len(str(problems[0])) < 200


def test_an_unknown_key_of_the_admission_is_named_with_its_place() -> None:
    _, problems = read_settings({"ADMISSION": {"quiet_lode": 1}})
    assert [(problem.kind, problem.key) for problem in problems] == [(ProblemKind.UNKNOWN, "ADMISSION.quiet_lode")]
    assert problems[0].hint == "Did you mean ADMISSION.quiet_load?"


NAN, INFINITY = float("nan"), float("inf")
WRONG_LIMITS = ({"max": True}, {"rate": 5}, {"rate": "5"}, {"burst": 2}, {"other": 1}, {3: 1})
REFUSED: list[tuple[str, Any]] = [
    *(("LEASE_SEC", value) for value in (0, -1, True, "30", None, NAN, INFINITY, -INFINITY, 10**400, [], 1e9)),
    *(("GRACE_SEC", value) for value in (-0.1, NAN, None, False)),
    *(("CANCEL_TIMEOUT_SEC", value) for value in (0, True, "none", NAN)),
    *(("DIRECT_MAX_RUNTIME_SEC", value) for value in (0, -1, None, True, "300", INFINITY)),
    *((name, value) for name in ("DIRECT_MAX", "DIRECT_PER_TOKEN") for value in (0, -1, 1.5, None, True, "4", 10**6)),
    *(("RETRY_MAX_RETRIES", value) for value in (-1, 1.0, True, 10**6, None, "3", 10**5000)),
    *(("SNOOZE_MAX", value) for value in (-1, 1.5, None, True)),
    *(("RETRY_JITTER", value) for value in (-0.1, 1.1, NAN, True)),
    *(("TOKEN_LIMIT", value) for value in (-1, 2**63, 1.5, False)),
    *(("MAX_BODY_BYTES", value) for value in (0, -1, 1e6, None)),
    *(("MAX_PARAMS_DEPTH", value) for value in (0, 101, True)),
    *(("API_RATE_LIMIT", value) for value in (0, "10/min", True)),
    *(("RETENTION_DAYS", value) for value in (0, -1, NAN, True)),
    *(("METRICS_PUBLIC", value) for value in (0, 1, "true", None)),
    *(("PRESET", value) for value in ("staging", "Production", "", 1, "production|development")),
    *(("RETRY_POLICY", value) for value in (None, "", "nodots", "a b.c", "a..b", ".a.b", Counted, 3)),
    *((key, value) for key in ("FAIRNESS_POLICY", "JOB_CONTEXT", "HANDLER_WRAPPER") for value in ("", "nodots", 3)),
    *(("COMMAND_ALLOW", value) for value in ("migrate", None, [1], [""], ["a\nb"], {"a": 1})),
    *(("AUTODISCOVER", value) for value in ("jobs", ["not a module"], [None])),
    *(("WEBHOOK_PORTS", value) for value in (443, "443", [0], [65_536], [True], ["80"])),
    *(("LEGACY_SUNSET", value) for value in ("soon", "2027-02-30", 20271231, None, datetime(2027, 1, 1, tzinfo=UTC))),
    *(("LEGACY_TOKEN", value) for value in ("legacy", "js_short", "js_ab12cd3 ", "js_ab12cd34", "", 5)),
    *(("WEBHOOK_SECRET_KEY", value) for value in ("short", b"x" * 32, 5)),
    *(("WEBHOOK_PROXY", value) for value in ("proxy:3128", "ftp://proxy", "http://", "http://a b", 5)),
    *(("LIMITS", value) for value in (None, 1, [], "global", {"host": {"a": 1}}, {3: 1})),
    *(("LIMITS", {"global": value}) for value in (0, -1, 1.0, True, "1", 2**31)),
    *(("LIMITS", {"resource": {"a": value}}) for value in WRONG_LIMITS),
    *(("LIMITS", {"job_type": value}) for value in (1, None, ["a"], {"a": 0}, {"a": True}, {"a": "2"}, {"a": NAN})),
    *(("LIMITS", {"tenant": {key: 1}}) for key in ("", "x" * 201, "a\nb", 3, None)),
    *(("ADMISSION", value) for value in (None, 1, [], "x")),
]


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=make_test_id)
def test_an_ill_typed_or_impossible_value_is_a_problem_and_has_its_default(key: str, value: Any) -> None:
    accepted, problems = read_settings({key: value})
    assert [(problem.kind, problem.key) for problem in problems] == [(ProblemKind.INVALID, key)]
    assert key in problems[0].message
    assert getattr(accepted, key) == getattr(Conf(), key)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("capacity_max", 0),
        ("capacity_max", 101),
        ("quiet_load", NAN),
        ("busy_load", "high"),
        ("streak_sec", True),
        ("max_cost_per_addon", 0),
        ("deadline_near_sec", -1),
    ],
)
def test_an_impossible_admission_parameter_is_named_with_its_place(key: str, value: Any) -> None:
    accepted, problems = read_settings({"ADMISSION": {key: value}})
    assert [(problem.kind, problem.key) for problem in problems] == [(ProblemKind.INVALID, f"ADMISSION.{key}")]
    assert getattr(accepted.ADMISSION, key) == getattr(Admission(), key)


def test_quiet_must_be_quieter_than_busy() -> None:
    _, problems = read_settings({"ADMISSION": {"quiet_load": 0.9}})
    assert [problem.key for problem in problems] == ["ADMISSION.quiet_load"]


def test_all_problems_are_told_at_once() -> None:
    _, problems = read_settings(
        {"LEASE_SEC": "x", "NOPE": 1, "API_BULK_LIMIT": 0, "ADMISSION": {"x": 1, "streak_sec": -1}}
    )
    assert {problem.key for problem in problems} == {
        "LEASE_SEC",
        "NOPE",
        "API_BULK_LIMIT",
        "ADMISSION.x",
        "ADMISSION.streak_sec",
    }


@pytest.mark.parametrize(
    "raw",
    [{"HEARTBEAT_SEC": 7.6}, {"LEASE_SEC": 7}, {"PRESET": "production", "LEASE_SEC": 119}, {"HEARTBEAT_SEC": 60}],
)
def test_a_heartbeat_above_a_quarter_of_the_lease_is_a_problem(raw: dict[str, Any]) -> None:
    _, problems = read_settings(raw)
    assert [problem.kind for problem in problems] == [ProblemKind.HEARTBEAT]


def test_a_heartbeat_of_exactly_a_quarter_is_fine() -> None:
    read_well({"HEARTBEAT_SEC": 7.5})
    for preset in PRESETS:
        read_well({"PRESET": preset})


@pytest.mark.parametrize("raw", [{"LEASE_SEC": "x"}, {"PRESET": "prodution"}])
def test_a_heartbeat_is_not_blamed_for_another_mistake(raw: dict[str, Any]) -> None:
    _, problems = read_settings({"HEARTBEAT_SEC": 20, **raw})
    assert [problem.kind for problem in problems] == [ProblemKind.INVALID]


@pytest.mark.parametrize(
    ("raw", "limits"),
    [
        ({}, []),
        ({"global": None}, []),
        ({"global": 4}, [("global", "", 4)]),
        ({"job_type": {"a.b": 2}}, [("job_type", "a.b", 2)]),
        ({"global": 9, "resource": {"gpu": 1}}, [("global", "", 9), ("resource", "gpu", 1)]),
        ({"addon": {"x": 3, "y": 1}}, [("addon", "x", 3), ("addon", "y", 1)]),
        ({"tenant": {"acme": 5, "free": None}}, [("tenant", "acme", 5)]),
    ],
)
def test_an_absent_scope_is_unlimited(raw: dict[str, Any], limits: list[tuple[str, str, int]]) -> None:
    accepted = read_well({"LIMITS": raw}).LIMITS
    assert list(accepted.items()) == [((scope, key), LimitValues(maximum)) for scope, key, maximum in limits]
    assert all(accepted.get(scope, key).max == maximum for scope, key, maximum in limits)
    assert accepted.get("job_type", "unheard of") == LimitValues()


def test_a_limit_may_have_rates_beside_its_maximum() -> None:
    full = {"max": 8, "rate": "60/minute", "token_rate": "90000/min", "burst": 5}
    accepted = read_well({"LIMITS": {"global": {"rate": "10/s"}, "resource": {"openai": full, "gpu": 1}}}).LIMITS
    assert accepted.get("resource", "openai") == LimitValues(8, "60/min", "90000/min", 5)
    assert accepted.get("resource", "gpu") == LimitValues(1)
    assert accepted.get("global") == LimitValues(None, "10/s")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"rate": "60"}, ("[resource.openai.rate]", "60/min", "'60'")),
        ({"token_rate": 5}, ("[resource.openai.token_rate]", "60/min", "5")),
        ({"max": 0}, ("[resource.openai.max]",)),
        ({"rate": "1/s", "burst": 0}, ("[resource.openai.burst]",)),
        ({"burst": 5}, ("[resource.openai.burst]", "needs a rate")),
        ({"rte": "60/min"}, ("[resource.openai]", "rate", "'rte'")),
        ({"": 1}, ("[resource.openai]", "''")),
    ],
)
def test_a_wrong_value_of_a_limit_is_named(raw: dict[str, Any], words: tuple[str, ...]) -> None:
    _, (problem,) = read_settings({"LIMITS": {"resource": {"openai": raw}}})
    assert all(word in problem.message for word in words), problem.message


def test_limits_are_a_snapshot_of_what_was_written() -> None:
    raw = {"job_type": {"a": 1}}
    accepted = read_well({"LIMITS": raw}).LIMITS
    raw["job_type"]["a"] = 99
    assert accepted.get("job_type", "a").max == 1


def test_a_secret_is_neither_shown_nor_quoted_in_a_problem() -> None:
    good = {"WEBHOOK_SECRET_KEY": "hunter2-hunter2-hunter2", "WEBHOOK_PROXY": "http://me:hunter2@proxy:3128"}
    assert "hunter2" not in repr(read_well(good))
    bad = {"WEBHOOK_SECRET_KEY": "hunter2", "WEBHOOK_PROXY": "me:hunter2@proxy", "LEGACY_TOKEN": "js_hunter2hunter2"}
    _, problems = read_settings(bad)
    assert len(problems) == 3
    assert "hunter2" not in repr(problems)


@pytest.mark.parametrize("value", ["2030-06-01", date(2030, 6, 1)])
def test_a_sunset_is_a_date_or_its_iso_text(value: Any) -> None:
    sunset = read_well({"LEGACY_SUNSET": value}).LEGACY_SUNSET
    assert sunset == date(2030, 6, 1)


def test_lists_become_tuples() -> None:
    accepted = read_well({"COMMAND_ALLOW": ["migrate"], "WEBHOOK_PORTS": [8443], "AUTODISCOVER": []})
    assert (accepted.COMMAND_ALLOW, accepted.WEBHOOK_PORTS, accepted.AUTODISCOVER) == (("migrate",), (8443,), ())


def test_the_proxy_follows_the_django_settings() -> None:
    with override_settings(JOBSCHEDULER={"LEASE_SEC": 40}):
        assert (conf.LEASE_SEC, conf.current().LEASE_SEC) == (40, 40)
        with override_settings(JOBSCHEDULER={"LEASE_SEC": 50}):
            assert conf.LEASE_SEC == 50
        assert conf.LEASE_SEC == 40


def test_the_settings_are_read_once() -> None:
    with override_settings(JOBSCHEDULER={"POLL_SEC": 3}):
        assert conf.current() is conf.current()
        assert vars(conf)["POLL_SEC"] == 3  # a plain attribute: no reading, no proxy in between


def test_a_site_that_configures_nothing_gets_the_defaults() -> None:
    with override_settings():
        del django_settings.JOBSCHEDULER
        assert conf.current() == Conf()


def test_using_wrong_settings_names_everything_that_is_wrong() -> None:
    with (
        override_settings(JOBSCHEDULER={"LEASE_SECS": 1, "POLL_SEC": "x"}),
        pytest.raises(ImproperlyConfigured, match=r"LEASE_SECS.*Did you mean LEASE_SEC\?.*POLL_SEC must be"),
    ):
        conf.HEARTBEAT_SEC  # noqa: B018


def test_a_name_that_is_no_setting_is_a_plain_attribute_error_even_when_settings_are_wrong() -> None:
    with override_settings(JOBSCHEDULER={"NOPE": 1}), pytest.raises(AttributeError, match="NOPE"):
        conf.NOPE  # noqa: B018


def test_a_policy_is_made_once_per_settings() -> None:
    path = f"{__name__}.Counted"
    with override_settings(JOBSCHEDULER={"RETRY_POLICY": path}):
        before = Counted.made
        assert isinstance(policy("RETRY_POLICY"), Counted)
        assert policy("RETRY_POLICY") is conf.policy("RETRY_POLICY")
        assert Counted.made == before + 1
    with override_settings(JOBSCHEDULER={"RETRY_POLICY": path}):
        policy("RETRY_POLICY")
        assert Counted.made == before + 2


def test_no_policy_is_none() -> None:
    with override_settings(JOBSCHEDULER={}):
        assert policy("FAIRNESS_POLICY") is None


@pytest.mark.parametrize("path", ["no.such.module", f"{__name__}.Missing", f"{__name__}.NeedsArguments", "os.sep"])
def test_a_policy_that_cannot_be_made_names_its_key_and_path(path: str) -> None:
    with (
        override_settings(JOBSCHEDULER={"RETRY_POLICY": path}),
        pytest.raises(ImproperlyConfigured, match=f"RETRY_POLICY '{path}'"),
    ):
        policy("RETRY_POLICY")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("LEASE_SEC", "60", 60),
        ("GRACE_SEC", " 2.5 ", 2.5),
        ("CANCEL_TIMEOUT_SEC", "", None),
        ("CANCEL_TIMEOUT_SEC", "None", None),
        ("TOKEN_LIMIT", "none", None),
        ("PRESET", "production", "production"),
        ("PRESET", "", None),
        ("METRICS_PUBLIC", "true", True),
        ("METRICS_PUBLIC", "1", True),
        ("METRICS_PUBLIC", "On", True),
        ("METRICS_PUBLIC", "no", False),
        ("METRICS_PUBLIC", "0", False),
        ("COMMAND_ALLOW", "migrate, clearsessions,", ("migrate", "clearsessions")),
        ("COMMAND_ALLOW", "", ()),
        ("COMMAND_ALLOW", "none", ()),
        ("WEBHOOK_PORTS", "80,8443", (80, 8443)),
        ("LIMITS", '{"global": null, "resource": {"gpu": 2}}', {"global": None, "resource": {"gpu": 2}}),
        ("ADMISSION", '{"streak_sec": 5}', {"streak_sec": 5}),
        ("LEGACY_SUNSET", "2030-01-01", "2030-01-01"),
        ("RETRY_POLICY", "a.b.C", "a.b.C"),
        ("WEBHOOK_SECRET_KEY", "0123456789abcdef", "0123456789abcdef"),
    ],
)
def test_the_environment_is_read_by_the_type_of_each_key(key: str, text: str, value: Any) -> None:
    raw = from_environ({f"JOBSCHEDULER_{key}": text, "PATH": "/bin", "DATABASE_URL": "x"})
    assert raw == {key: value}
    assert type(raw[key]) is type(value)
    read_well(raw)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("LEASE_SEC", "half a minute"),
        ("LEASE_SEC", "nan"),
        ("LEASE_SEC", "inf"),
        ("LEASE_SEC", ""),
        ("LEASE_SEC", "9" * 5000),
        ("API_BULK_LIMIT", "1.5"),
        ("METRICS_PUBLIC", "maybe"),
        ("LIMITS", "{"),
        ("LIMITS", "[" * 100_000),
        ("LIMITS", "none"),
        ("ADMISSION", "3"),
        ("WEBHOOK_PORTS", "http"),
        ("LEGACY_SUNSET", "tomorrow"),
    ],
    ids=make_test_id,
)
def test_an_unreadable_variable_is_reported_as_the_wrong_type(key: str, text: str) -> None:
    _, problems = read_settings(from_environ({f"JOBSCHEDULER_{key}": text}))
    assert [(problem.kind, problem.key) for problem in problems] == [(ProblemKind.INVALID, key)]


def test_an_unknown_variable_is_reported_as_an_unknown_key() -> None:
    raw = from_environ({"JOBSCHEDULER_LEASE_SECS": "60", "JOBSCHEDULER_PORT": "8000"})
    assert raw == {"LEASE_SECS": "60", "PORT": "8000"}
    assert {problem.kind for problem in read_settings(raw).problems} == {ProblemKind.UNKNOWN}


def test_the_addresses_that_a_cluster_announces_for_a_service_of_our_name_are_no_settings() -> None:
    links = {
        "JOBSCHEDULER_SERVICE_HOST": "10.0.0.7",
        "JOBSCHEDULER_SERVICE_PORT": "80",
        "JOBSCHEDULER_SERVICE_PORT_HTTP": "80",
        "JOBSCHEDULER_PORT": "tcp://10.0.0.7:80",
        "JOBSCHEDULER_PORT_80_TCP": "tcp://10.0.0.7:80",
        "JOBSCHEDULER_PORT_80_TCP_ADDR": "10.0.0.7",
    }
    assert from_environ(links) == {}


def test_every_key_has_a_rule() -> None:
    assert set(RULES) == {field.name for field in fields(Conf)}
