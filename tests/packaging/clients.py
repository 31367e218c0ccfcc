"""Clients that others generate from docs/openapi.json, and the linters of its format: `make clients`.

The tools of npm are installed into a temporary directory: Redocly and Spectral must have nothing to say, and the types
of openapi-typescript must compile with `tsc --strict`, reject what the API rejects, and fit the example of docs/api.md.
The suite itself tests the Python client (`tests/api/test_generated_clients.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from docs.generate import OPENAPI
from tests.packaging import doc_examples
from tests.packaging.processes import run

PACKAGES = (
    "@redocly/cli@2.77.0",
    "@stoplight/spectral-cli@6.16.3",
    "openapi-fetch@0.17.0",
    "openapi-typescript@7.13.0",
    "typescript@5.9.3",
    "@types/node@20",
)
LINTERS = ("redocly", "spectral")
# Whether the project has a licence is not for the document to say.
REDOCLY = ("redocly", "lint", "openapi.json", "--extends=recommended", "--format=json")
SPECTRAL = ("spectral", "lint", "openapi.json", "--ruleset=spectral.json", "--fail-severity=hint")
TSC = ("tsc", "--strict", "--noEmit", "--module", "nodenext", "--target", "es2022", "--skipLibCheck", "--types", "node")
TYPES = """
import type { components } from "./scheduler.js";

type Schemas = components["schemas"];

export const job: Schemas["JobIn"] = { job_type: "mail.send", params: { to: ["a"], tries: 1 }, priority: "HIGH" };
export const schedule: Schemas["ScheduleIn"] = { name: "a", job_type: "x", cron: "0 3 * * *", params: { seconds: 1 } };
export const readParam = (job: Schemas["JobOut"]): unknown => job.params?.["seconds"];
export const readPosition = (job: Schemas["JobOut"]): bigint => BigInt(job.position);

// @ts-expect-error  a field that does not exist
export const unknownField: Schemas["JobIn"] = { job_type: "mail.send", nonsense: 1 };
// @ts-expect-error  a value of another type
export const wrongType: Schemas["JobIn"] = { job_type: "mail.send", tags: "draft" };
// @ts-expect-error  a field is missing
export const missing: Schemas["ScheduleIn"] = { job_type: "x", cron: "0 3 * * *" };
// @ts-expect-error  a position is no number
export const rounded = (job: Schemas["JobOut"]): number => job.position;
"""


def main() -> int:
    if shutil.which("npm") is None:
        print("npm is missing: install Node.js 20 or newer", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="jobscheduler-clients-") as name:
        home = Path(name)
        (home / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES], cwd=home)
        env = {**os.environ, "PATH": os.pathsep.join([str(home / "node_modules" / ".bin"), os.environ["PATH"]])}
        for linter in LINTERS:
            lint(linter, home, env)
            print(f"{linter}: nothing to say", flush=True)
        run(["openapi-typescript", "openapi.json", "--output", "scheduler.d.ts"], cwd=home, env=env)
        (home / "types.ts").write_text(TYPES)
        (home / "example.ts").write_text(find_example("ts"))
        run([*TSC, "types.ts", "example.ts"], cwd=home, env=env)
        print("openapi-typescript: compiles with tsc --strict")
    return 0


def lint(linter: str, home: Path, env: dict[str, str]) -> None:
    """Raise AssertionError if the linter, which must be on the PATH, finds anything in the document."""
    shutil.copy(OPENAPI, home / "openapi.json")
    env = {**env, "REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    if linter == "spectral":
        (home / "spectral.json").write_text(json.dumps({"extends": ["spectral:oas"]}))
        run([*SPECTRAL], cwd=home, env=env)
    else:
        output = run([*REDOCLY], cwd=home, env=env)
        report: dict[str, Any] = json.loads(output[output.index("{") : output.rindex("}") + 1])
        assert report["totals"]["errors"] == report["totals"]["warnings"] == 0, json.dumps(report, indent=1)[:5000]


def find_example(language: str) -> str:
    """Return the only example of docs/api.md in this language that uses a generated client."""
    (text,) = (text for name, text in doc_examples.blocks("api.md") if name == language and "import" in text)
    return text


if __name__ == "__main__":
    sys.exit(main())
