"""Bad input gets a 4xx that names the field, and leaves the database unchanged."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.test import override_settings

from jobs.models import Job
from jobs.states import Status
from tests.factories import SAMPLE_TYPE, job_in
from tests.sample_app import job_types
from tests.support.api_client import ApiClient
from tests.support.snapshots import dump_all_but_tokens

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types

NOTE = {"job_type": "tests.note", "params": {"text": "x"}}
JSON_TRIES = 17  # of the attack by hand that these cases repeat
ABSENT = "01920000-0000-7000-8000-000000000000"


@dataclass(frozen=True)
class Case:
    """One request, its expected status, and the location of the wrong field (None: no field is wrong)."""

    name: str
    path: str
    body: Any = None
    status: int = 422
    loc: list[Any] | None = None
    method: str = "post"
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    code: str = ""


def submit_case(name: str, loc: list[Any], /, **fields: Any) -> Case:
    return Case(f"submit: {name}", "/jobs", {**NOTE, **fields}, loc=["body", *loc])


def body_case(name: str, raw: bytes, loc: list[Any], status: int = 422) -> Case:
    return Case(f"body: {name}", "/jobs", raw=raw, loc=loc, status=status)


def query_case(name: str, query: str, loc: list[Any], path: str = "/jobs") -> Case:
    return Case(f"query: {name}", f"{path}?{query}", method="get", loc=["query", *loc])


def build_body(value: str) -> bytes:
    return ('{"job_type": "tests.anything", "params": {"text": ' + value + "}}").encode("utf-8", "surrogatepass")


def build_nested_body(depth: int) -> bytes:
    return build_body("[" * depth + "]" * depth)


def build_fields_body(count: int) -> bytes:
    return json.dumps({f"f{number}": 1 for number in range(count)}, separators=(",", ":")).encode()


ENCODINGS = [
    body_case("NUL, escaped", build_body('"a\\u0000b"'), ["body", "params", "text"]),
    body_case(
        "NUL in a key", b'{"job_type": "tests.anything", "params": {"a\\u0000": 1}}', ["body", "params", "a\ufffd"]
    ),
    body_case("half a surrogate pair, escaped", build_body('"\\ud800"'), ["body", "params", "text"]),
    body_case("surrogates the wrong way round", build_body('"\\udc00\\ud800"'), ["body", "params", "text"]),
    body_case("half a surrogate pair, raw", build_body('"\ud800"'), ["body"], 400),
    body_case("byte order mark", b"\xef\xbb\xbf" + json.dumps(NOTE).encode(), ["body"], 400),
    body_case("UTF-16", json.dumps(NOTE).encode("utf-16"), ["body"], 400),
    body_case("UTF-32", json.dumps(NOTE).encode("utf-32"), ["body"], 400),
    body_case("Latin-1", build_body('"é"').decode().encode("latin-1"), ["body"], 400),
    body_case("broken UTF-8", build_body('"') + b'\xff\xfe"}}', ["body"], 400),
    body_case("overlong UTF-8", build_body('"x')[:-1] + b'\xc0\x80"}}', ["body"], 400),
    body_case("raw control character in text", b'{"job_type": "tests.note\n"}', ["body"], 400),
    submit_case("NUL in a name", ["target"], target="a\0b"),
    submit_case("NUL in a tag", ["tags", 0], tags=["a\0"]),
    submit_case("NUL in the job type", ["job_type"], job_type="tests\0note"),
    submit_case("line break in a name", ["resource"], resource="a\nb"),
    submit_case("escape character in a name", ["addon_id"], addon_id="\x1b[31m"),
]
MALFORMED = [
    body_case("empty", b"", ["body"], 400),
    body_case("blank", b"  ", ["body"], 400),
    body_case("cut off", b'{"job_type": ', ["body"], 400),
    body_case("a word", b"job", ["body"], 400),
    body_case("single quotes", b"{'job_type': 'x'}", ["body"], 400),
    body_case("trailing comma", b'{"job_type": "tests.note",}', ["body"], 400),
    body_case("comment", b'{"job_type": "tests.note" /* x */}', ["body"], 400),
    body_case("two documents", b"{} {}", ["body"], 400),
    body_case("trailing NUL", json.dumps(NOTE).encode() + b"\0", ["body"], 400),
    body_case("form fields", b"job_type=tests.note", ["body"], 400),
    body_case("a million brackets", b"[" * 900_000, ["body"], 422),
    body_case("depth 100,000", build_nested_body(100_000), ["body"]),
    body_case("80,000 fields", build_fields_body(80_000), ["body", "f0"]),
    Case(
        "body: gzip",
        "/jobs",
        raw=gzip.compress(json.dumps(NOTE).encode()),
        status=400,
        headers={"Content-Encoding": "gzip"},
    ),
]
NUMBERS = [
    body_case("NaN", build_body("NaN"), ["body"], 400),
    body_case("Infinity", build_body("Infinity"), ["body"], 400),
    body_case("minus Infinity", build_body("-Infinity"), ["body"], 400),
    body_case("1e400", build_body("1e400"), ["body"]),
    body_case("beyond 64 bits", build_body("9223372036854775808"), ["body"]),
    body_case("below 64 bits", build_body("-9223372036854775809"), ["body"]),
    body_case("hundreds of digits", build_body("1" * 500), ["body"]),
    body_case("thousands of digits", build_body("1" * 10_000), ["body"]),
    body_case("a megabyte of digits", build_body("1" * 1_000_000), ["body"]),
    body_case("an exponent of nine digits", build_body("1e999999999"), ["body"]),
    body_case("leading zero", build_body("01"), ["body"], 400),
    body_case("plus sign", build_body("+1"), ["body"], 400),
    body_case("hexadecimal", build_body("0x10"), ["body"], 400),
    submit_case("priority too high", ["priority"], priority=101),
    submit_case("priority too low", ["priority"], priority=-1),
    submit_case("priority with a fraction", ["priority"], priority=50.5),
    submit_case("priority a boolean", ["priority"], priority=True),
    submit_case("priority an unknown word", ["priority"], priority="HIGHEST"),
    submit_case("priority digits as text", ["priority"], priority="50"),
    submit_case("priority a list", ["priority"], priority=[50]),
    submit_case("position beyond its room", ["position"], position=2**62 + 1),
    submit_case("position a fraction", ["position"], position=1.5),
    submit_case("position a boolean", ["position"], position=False),
    submit_case("position a word", ["position"], position="first"),
    submit_case("position a fraction as text", ["position"], position="1.5"),
    submit_case("position beyond its room as text", ["position"], position=str(2**62 + 1)),
    submit_case("position in other digits", ["position"], position="\u0661"),
    submit_case("cost beyond 100", ["cost_units"], cost_units=101),
    submit_case("cost below 0", ["cost_units"], cost_units=-1),
    submit_case("cost a boolean", ["cost_units"], cost_units=True),
    submit_case("token limit below 0", ["token_limit"], token_limit=-1),
    submit_case("token limit as text", ["token_limit"], token_limit="10"),
    submit_case("retries below 0", ["max_retries"], max_retries=-1),
    submit_case("retries beyond 1000", ["max_retries"], max_retries=1001),
    submit_case("runtime of nothing", ["max_runtime_sec"], max_runtime_sec=0),
    submit_case("runtime below 0", ["max_runtime_sec"], max_runtime_sec=-0.1),
    submit_case("runtime beyond a year", ["max_runtime_sec"], max_runtime_sec=1e9),
    submit_case("runtime a boolean", ["max_runtime_sec"], max_runtime_sec=True),
    submit_case("duration as text", ["expected_duration_sec"], expected_duration_sec="5s"),
]
TIMES = [
    submit_case("without an offset", ["not_before"], not_before="2030-01-01T00:00:00"),
    submit_case("a date", ["not_before"], not_before="2030-01-01"),
    submit_case("a number", ["not_before"], not_before=1893456000),
    submit_case("impossible day", ["not_before"], not_before="2030-02-30T00:00:00Z"),
    submit_case("impossible hour", ["not_before"], not_before="2030-01-01T25:00:00Z"),
    submit_case("month 13", ["deadline_at"], deadline_at="2030-13-01T00:00:00Z"),
    submit_case("year 0", ["not_before"], not_before="0000-01-01T00:00:00Z"),
    submit_case("year 10000", ["not_before"], not_before="10000-01-01T00:00:00Z"),
    submit_case("before the year 1 after the zone shift", ["not_before"], not_before="0001-01-01T00:00:00+14:00"),
    submit_case("after 9999 after the zone shift", ["not_before"], not_before="9999-12-31T23:59:59-14:00"),
    submit_case("offset of a whole day", ["not_before"], not_before="2030-01-01T00:00:00+24:00"),
    submit_case("week date", ["not_before"], not_before="2030-W01-1T00:00:00Z"),
    submit_case("a word", ["not_before"], not_before="tomorrow"),
    submit_case("empty", ["not_before"], not_before=""),
    submit_case("Arabic digits", ["not_before"], not_before="٢٠٣٠-01-01T00:00:00Z"),
    submit_case(
        "deadline before the start",
        ["deadline_at"],
        not_before="2030-01-02T00:00:00Z",
        deadline_at="2030-01-01T00:00:00Z",
    ),
]
SIZES = [
    submit_case("target of 201", ["target"], target="x" * 201),
    submit_case("empty target", ["target"], target=""),
    submit_case("blank target", ["target"], target="   "),
    submit_case("target with a slash", ["target"], target="a/b"),
    submit_case("job type of 201", ["job_type"], job_type="x" * 201),
    submit_case("empty job type", ["job_type"], job_type=""),
    submit_case("33 tags", ["tags"], tags=[str(n) for n in range(33)]),
    submit_case("tag of 65", ["tags", 0], tags=["x" * 65]),
    submit_case("empty tag", ["tags", 1], tags=["a", ""]),
    submit_case("tenant of 65", ["tenant"], tenant="x" * 65),
    submit_case("idempotency key of 256", ["idempotency_key"], idempotency_key="k" * 256),
    submit_case("empty idempotency key", ["idempotency_key"], idempotency_key=""),
    submit_case("idempotency key beyond ASCII", ["idempotency_key"], idempotency_key="schlüssel"),
    body_case("depth 33", build_nested_body(32), ["body", "params", "text", *[0] * 31]),
    body_case("depth 500", build_nested_body(500), ["body", "params", "text", *[0] * 31]),
    Case("bulk: too many", "/jobs/bulk", {"jobs": [NOTE] * 4}, loc=["body", "jobs"]),
    Case("verb: reason of 2001", "/jobs/{queued}/cancel", {"reason": "x" * 2001}, loc=["body", "reason"]),
]
STRUCTURE = [
    body_case("null", b"null", ["body"]),
    body_case("a list", b"[]", ["body"]),
    body_case("a text", b'"x"', ["body"]),
    body_case("a number", b"1", ["body"]),
    body_case("a key twice", b'{"job_type": "tests.note", "job_type": "tests.note"}', ["body", "job_type"]),
    body_case("a key twice, deep", build_body('{"a": 1, "a": 2}'), ["body", "a"]),
    submit_case("unknown field", ["prio"], prio=1),
    submit_case("field in capitals", ["Priority"], Priority=1),
    submit_case("params null entry missing", ["params", "text"], params={}),
    submit_case("params a list", ["params"], params=[]),
    submit_case("params a text", ["params"], params="{}"),
    submit_case("params with an unknown name", ["params", "colour"], params={"text": "x", "colour": 1}),
    submit_case("params of the wrong type", ["params", "text"], params={"text": 1}),
    submit_case("tags a text", ["tags"], tags="a"),
    submit_case("tags of numbers", ["tags", 0], tags=[1]),
    submit_case("tags of null", ["tags", 0], tags=[None]),
    submit_case("constraints a list", ["constraints"], constraints=["cpu_heavy"]),
    submit_case("unknown constraint", ["constraints", "gpu"], constraints={"gpu": True}),
    submit_case("constraint not a boolean", ["constraints", "cpu_heavy"], constraints={"cpu_heavy": 1}),
    submit_case("hold as text", ["hold"], hold="true"),
    submit_case("time_sensitive as a number", ["time_sensitive"], time_sensitive=1),
    submit_case("time_sensitive without a deadline", ["time_sensitive"], time_sensitive=True),
    submit_case("tenant a number", ["tenant"], tenant=1),
    submit_case("tenant with a slash", ["tenant"], tenant="a/b"),
    submit_case("tenant with letters beyond ASCII", ["tenant"], tenant="münchen"),
    submit_case("template and job type", ["job_type"], template="x"),
    submit_case("neither template nor job type", ["job_type"], job_type=None),
    submit_case("unknown template", ["template"], job_type=None, template="nobody's"),
    submit_case("unknown job type", ["job_type"], job_type="tests.nobody"),
    submit_case("job type a number", ["job_type"], job_type=1),
    submit_case("job type an import path", ["job_type"], job_type="os.system"),
    Case("bulk: jobs missing", "/jobs/bulk", {}, loc=["body", "jobs"]),
    Case("bulk: jobs null", "/jobs/bulk", {"jobs": None}, loc=["body", "jobs"]),
    Case("bulk: jobs an object", "/jobs/bulk", {"jobs": {}}, loc=["body", "jobs"]),
    Case("bulk: entry null", "/jobs/bulk", {"jobs": [NOTE, None]}, loc=["body", "jobs", 1]),
    Case(
        "bulk: entry wrong",
        "/jobs/bulk",
        {"jobs": [NOTE, {**NOTE, "priority": 999}]},
        loc=["body", "jobs", 1, "priority"],
    ),
    Case("bulk: entry unknown field", "/jobs/bulk", {"jobs": [{**NOTE, "x": 1}]}, loc=["body", "jobs", 0, "x"]),
    Case("bulk: entry bad tenant", "/jobs/bulk", {"jobs": [{**NOTE, "tenant": ""}]}, loc=["body", "jobs", 0, "tenant"]),
    Case("bulk: beside jobs", "/jobs/bulk", {"jobs": [], "x": 1}, loc=["body", "x"]),
    Case(
        "bulk: one key, two bodies",
        "/jobs/bulk",
        {"jobs": [{**NOTE, "idempotency_key": "k"}, {**NOTE, "idempotency_key": "k", "priority": 1}]},
        409,
        code="idempotency_key_reused",
    ),
]
MASS_ASSIGNMENT = [
    submit_case(f"{name} cannot be submitted", [name], **{name: value})
    for name, value in {
        "id": ABSENT,
        "status": "COMPLETED",
        "status_reason": "x",
        "gate": 3,
        "lease_token": ABSENT,
        "lease_owner": "me",
        "lease": {"owner": "me"},
        "dispatched_at": "2030-01-01T00:00:00Z",
        "created_at": "2030-01-01T00:00:00Z",
        "retry_of": ABSENT,
        "attempt": 1,
        "group": ABSENT,
        "group_id": ABSENT,
        "schedule_id": ABSENT,
        "checkpoint": {},
        "fence": 1,
        "holds_lane": True,
        "cancel_requested": True,
        "idempotency_hash": "x",
        "remote": True,
        "__class__": "x",
    }.items()
]
HEADERS = [
    Case(f"header: key {name}", "/jobs", NOTE, loc=["header", "Idempotency-Key"], headers={"Idempotency-Key": key})
    for name, key in {"empty": "", "too long": "k" * 256, "with a tab": "a\tb", "beyond ASCII": "é"}.items()
] + [
    Case(
        "header: another key than the body's",
        "/jobs",
        {**NOTE, "idempotency_key": "a"},
        loc=["header", "Idempotency-Key"],
        headers={"Idempotency-Key": "b"},
    ),
]
QUERIES = [
    query_case("limit 0", "limit=0", ["limit"]),
    query_case("limit 501", "limit=501", ["limit"]),
    query_case("limit below 0", "limit=-1", ["limit"]),
    query_case("limit of many digits", "limit=" + "9" * 400, ["limit"]),
    query_case("limit a fraction", "limit=1.5", ["limit"]),
    query_case("limit a word", "limit=all", ["limit"]),
    query_case("limit empty", "limit=", ["limit"]),
    query_case("limit with a space", "limit=%205", ["limit"]),
    query_case("limit with a plus", "limit=%2B5", ["limit"]),
    query_case("limit in Arabic digits", "limit=%D9%A5", ["limit"]),
    query_case("limit in superscript", "limit=%C2%B2", ["limit"]),
    query_case("limit NUL", "limit=%00", ["limit"]),
    query_case("limit twice", "limit=5&limit=5", ["limit"]),
    query_case("job type twice", "job_type=a&job_type=b", ["job_type"]),
    query_case("unknown parameter", "colour=red", ["colour"]),
    query_case("unknown parameter without a value", "colour", ["colour"]),
    query_case("parameter in capitals", "Status=QUEUED", ["Status"]),
    query_case("lookup of the ORM", "status__in=QUEUED", ["status__in"]),
    query_case("search in params", "params__text=x", ["params__text"]),
    query_case("unknown status", "status=DONE", ["status"]),
    query_case("status in small letters", "status=queued", ["status"]),
    query_case("DISPATCHING is shown as QUEUED", "status=DISPATCHING", ["status"]),
    query_case("one good status, one bad", "status=QUEUED&status=", ["status"]),
    query_case("tenant with %", "tenant=%25", ["tenant"]),
    query_case("tenant empty", "tenant=", ["tenant"]),
    query_case("target with a slash", "target=a%2Fb", ["target"]),
    query_case("target empty", "target=", ["target"]),
    query_case("target NUL", "target=a%00", ["target"]),
    query_case("tag too long", "tag=" + "x" * 65, ["tag"]),
    query_case("tag empty", "tag=", ["tag"]),
    query_case("group malformed", "group=1", ["group"]),
    query_case("schedule malformed", "schedule=x", ["schedule"]),
    query_case("q empty", "q=", ["q"]),
    query_case("q NUL", "q=%00", ["q"]),
    query_case("q too long", "q=" + "x" * 201, ["q"]),
    query_case("q broken UTF-8", "q=%ff", []),
    query_case("parameter name broken UTF-8", "%ff=1", []),
    query_case("lone surrogate", "q=%ed%a0%80", []),
    query_case("created_after without an offset", "created_after=2030-01-01T00:00:00", ["created_after"]),
    query_case("created_before a word", "created_before=now", ["created_before"]),
    query_case("created_after with its plus as a space", "created_after=2030-01-01T00:00:00+00:00", ["created_after"]),
    query_case("order unknown", "order=oldest", ["order"]),
    query_case("order of what is not queued", "order=queue&status=FAILED", ["order"]),
    query_case("cursor empty", "cursor=", ["cursor"]),
    query_case("cursor nonsense", "cursor=abc", ["cursor"]),
    query_case("cursor forged", "cursor=WyJhIixbIjEiXV0:xxxxxxxxxxxxxxxxxxxxxxxxxxx", ["cursor"]),
    query_case("cursor endless", "cursor=" + "a" * 3000, ["cursor"]),
    query_case("a hundred and one parameters", "&".join(["tag=a"] * 101), []),
    query_case("events: unknown parameter", "kind=FAILED", ["kind"], "/jobs/{queued}/events"),
    query_case("events: limit", "limit=1000", ["limit"], "/jobs/{queued}/events"),
    query_case("logs: cursor", "cursor=1", ["cursor"], "/jobs/{queued}/logs"),
    query_case("runs: status that runs have not", "status=QUEUED", ["status"], "/job-runs"),
    query_case("runs: unknown parameter", "worker=x", ["worker"], "/job-runs"),
    query_case("single object: any parameter", "expand=run", ["expand"], "/jobs/{queued}"),
    Case("verb: any parameter", "/jobs/{queued}/cancel?force=1", loc=["query", "force"]),
    Case("submit: any parameter", "/jobs?dry_run=1", NOTE, loc=["query", "dry_run"]),
]
IDS = [
    Case(f"id: {name}", f"/jobs/{written_id}", method="get", status=404)
    for name, written_id in {
        "a number": "1",
        "a word": "latest",
        "absent": ABSENT,
        "too short": ABSENT[:-1],
        "too long": ABSENT + "0",
        "in braces": "{" + ABSENT + "}",
        "as a URN": f"urn:uuid:{ABSENT}",
        "NUL": "%00",
        "broken UTF-8": "%ff%fe",
        "a quote": "'",
        "an injection": "1'%20OR%20'1'='1",
        "percent": "%25",
        "path traversal": "..%2F..%2Fetc",
        "spaces": "%20",
        "very long": "x" * 3000,
    }.items()
]
VERBS = [
    Case("verb: unknown", "/jobs/{queued}/explode", {}, 404),
    Case("verb: unknown field", "/jobs/{queued}/cancel", {"force": True}, loc=["body", "force"]),
    Case("verb: reason a number", "/jobs/{queued}/cancel", {"reason": 1}, loc=["body", "reason"]),
    Case("verb: reason an empty object", "/jobs/{queued}/cancel", {"reason": {}}, loc=["body", "reason"]),
    Case("verb: reason 0", "/jobs/{queued}/pause", {"reason": 0}, loc=["body", "reason"]),
    Case("verb: reason false", "/jobs/{failed}/retry", {"reason": False}, loc=["body", "reason"]),
    Case("verb: reason NUL", "/jobs/{queued}/cancel", {"reason": "a\0"}, loc=["body", "reason"]),
    Case("verb: body a list", "/jobs/{queued}/pause", [], loc=["body"]),
    Case("verb: body null", "/jobs/{queued}/pause", raw=b"null", loc=["body"]),
    Case("verb: body cut off", "/jobs/{queued}/pause", raw=b"{", loc=["body"], status=400),
    Case("verb: absent job", f"/jobs/{ABSENT}/cancel", {}, 404),
    Case("retry: fresh as text", "/jobs/{failed}/retry", {"fresh": "yes"}, loc=["body", "fresh"]),
    Case("move: nowhere", "/jobs/{queued}/move", {}, loc=["body"]),
    Case("move: without a body", "/jobs/{queued}/move", loc=["body"]),
    Case("move: two ways", "/jobs/{queued}/move", {"to": "top", "before": ABSENT}, 404),
    Case("move: to the middle", "/jobs/{queued}/move", {"to": "middle"}, loc=["body", "to"]),
    Case("move: beside a number", "/jobs/{queued}/move", {"before": 1}, loc=["body", "before"]),
    Case("move: beside nothing", "/jobs/{queued}/move", {"before": ABSENT}, 404),
    Case("move: beside nonsense", "/jobs/{queued}/move", {"after": "x"}, 404),
    Case("move: beside itself", "/jobs/{queued}/move", {"after": "{queued}"}, loc=["body", "after"]),
    *(
        Case(f"{verb} from {state}", f"/jobs/{{{state}}}/{verb}", {}, 409, code="wrong_state")
        for verb, states in {
            "cancel": ("completed", "failed", "skipped", "cancelled"),
            "pause": ("pending", "completed", "failed", "paused"),
            "resume": ("pending", "queued", "running", "completed", "cancelled"),
            "retry": ("pending", "queued", "running", "paused"),
            "resolve": ("queued", "running", "completed", "cancelled"),
            "release": ("queued", "running", "completed"),
        }.items()
        for state in states
    ),
    *(Case(f"move from {state}", f"/jobs/{{{state}}}/move", {"to": "top"}, 409) for state in ("running", "completed")),
]
EDITS = (
    [
        Case(f"edit: {name}", "/jobs/{queued}", body, status, loc, "patch")
        for name, body, status, loc in [
            ("what cannot be edited", {"job_type": "tests.nothing"}, 422, ["body", "job_type"]),
            ("tenant", {"tenant": "other"}, 422, ["body", "tenant"]),
            ("status", {"status": "COMPLETED"}, 422, ["body", "status"]),
            ("reason", {"reason": "x"}, 422, ["body", "reason"]),
            ("priority", {"priority": 1000}, 422, ["body", "priority"]),
            ("params null", {"params": None}, 422, ["body", "params"]),
            ("params wrong", {"params": {"text": 1}}, 422, ["body", "params", "text"]),
            ("params unknown name", {"params": {"text": "x", "y": 1}}, 422, ["body", "params", "y"]),
            ("tags", {"tags": "x"}, 422, ["body", "tags"]),
            ("not a body", [], 422, ["body"]),
            ("no body", None, 400, ["body"]),
            ("naive time", {"not_before": "2030-01-01T00:00:00"}, 422, ["body", "not_before"]),
        ]
    ]
    + [
        Case(
            f"edit of {state}: {next(iter(body))}",
            f"/jobs/{{{state}}}",
            body,
            409,
            None,
            "patch",
            code="invalid_operation",
        )
        for state in ("running", "completed", "paused")
        for body in ({"params": {"text": "y"}}, {"target": "elsewhere"})
    ]
    + [
        Case(
            f"edit of {state}: priority", f"/jobs/{{{state}}}", {"priority": 1}, 409, None, "patch", code="wrong_state"
        )
        for state in ("running", "completed")
    ]
)
MEDIA = [
    Case(f"media type: {kind}", "/jobs", raw=json.dumps(NOTE).encode(), status=415, headers={"Content-Type": kind})
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "application/jsonp",
        "application/json; charset=latin-1",
        "application/octet-stream",
        "json",
        "",
    )
]
METHODS = [
    Case(f"{method} of {path}", path, method=method, status=405, code="method_not_allowed")
    for method, path in (
        ("delete", "/jobs"),
        ("put", "/jobs"),
        ("patch", "/jobs"),
        ("put", "/jobs/{queued}"),
        ("delete", "/jobs/{queued}"),
        ("get", "/jobs/{queued}/cancel"),
        ("post", "/jobs/{queued}/events"),
        ("options", "/jobs"),
        ("trace", "/jobs/{queued}"),
        ("post", "/job-runs"),
        ("post", "/openapi.json"),
    )
]
SECTIONS = (
    *(ENCODINGS, MALFORMED, NUMBERS, TIMES, SIZES, STRUCTURE, MASS_ASSIGNMENT, HEADERS),
    *(QUERIES, IDS, VERBS, EDITS, MEDIA, METHODS),
)
CASES = [case for section in SECTIONS for case in section]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_bad_input_is_refused_by_name_and_changes_nothing(case: Case) -> None:
    api, known = ApiClient("admin", tenant=None), create_named_jobs(case)
    before = dump_all_but_tokens()
    with override_settings(JOBSCHEDULER={"API_BULK_LIMIT": 3}):
        response = send_case(api, case, known)
    assert response.status_code == case.status, response.content
    assert response["Content-Type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == case.status
    assert document["type"].endswith(document["code"])
    if case.loc is not None:
        assert case.loc in [error["loc"] for error in document["errors"]], document
    if case.code:
        assert document["code"] == case.code
    if case.status == 405:
        assert response["Allow"]
    assert dump_all_but_tokens() == before


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 120
    assert len([case for case in (*ENCODINGS, *MALFORMED, *NUMBERS) if case.raw is not None]) >= JSON_TRIES
    assert len({case.name for case in CASES}) == len(CASES)


def send_case(api: ApiClient, case: Case, known: dict[str, Job]) -> Any:
    ids = {state: str(job.pk) for state, job in known.items()}
    path = case.path
    for state, job_id in ids.items():
        path = path.replace(f"{{{state}}}", job_id)
    content = case.raw if case.raw is not None else b"" if case.body is None else json.dumps(case.body).encode()
    for state, job_id in ids.items():
        content = content.replace(f'"{{{state}}}"'.encode(), f'"{job_id}"'.encode())
    headers = {**api.headers, "Content-Type": "application/json", **case.headers}
    kind = headers.pop("Content-Type")
    return api.client.generic(case.method.upper(), f"/api{path}", content, kind, headers=headers)


def create_named_jobs(case: Case) -> dict[str, Job]:
    request = f"{case.path} {case.body} {case.raw!r}"
    return {status.lower(): job_in(status) for status in Status if f"{{{status.lower()}}}" in request}
