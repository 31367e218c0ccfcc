"""Writes the generated pages of docs/ from the code they describe: `make docs`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIFECYCLE = HERE / "lifecycle.md"
OPENAPI = HERE / "openapi.json"
SETTINGS, COMMANDS = HERE / "reference" / "settings.md", HERE / "reference" / "commands.md"
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

# It is run as a file: only from here on is the project's root on the path.
from docs import reference_pages  # noqa: E402
from jobs.states import STATUS_MEANINGS, TERMINAL, TRANSITIONS, Status, Transition  # noqa: E402

START, END = "[*]", "[*]"


def main() -> None:
    LIFECYCLE.write_text(lifecycle_page())
    OPENAPI.write_text(openapi_document())
    SETTINGS.write_text(reference_pages.settings_page())
    COMMANDS.write_text(reference_pages.commands_page())
    print(f"wrote {', '.join(page.name for page in (LIFECYCLE, OPENAPI, SETTINGS, COMMANDS))}")


def openapi_document() -> str:
    """Return the document of `/api/openapi.json`; it does not depend on what else is installed."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "jobscheduler.settings")
    import django

    django.setup()
    from jobscheduler.api import api

    return json.dumps(api.get_openapi_schema(path_prefix="/api/"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def lifecycle_page() -> str:
    return "\n".join([*_opening(), *_states(), *_diagram(), *_transitions()])


def _opening() -> Iterable[str]:
    yield "<!-- Generated from jobs/states.py by docs/generate.py: edit there, then `make docs`. -->"
    yield "# The life of a job"
    yield ""
    yield "A started job has exactly one run; a pause suspends that run; a retry is a new job."
    yield "A terminal job stays as it is: `retry`, `resume` and `resolve` on one leave its state alone."
    yield ""


def _states() -> Iterable[str]:
    yield "## States"
    yield ""
    yield "| state | meaning | terminal |"
    yield "|---|---|---|"
    for status in Status:
        yield f"| {status} | {STATUS_MEANINGS[status]} | {'yes' if status in TERMINAL else ''} |"
    yield ""


def _diagram() -> Iterable[str]:
    yield "## Diagram"
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for (source, target), verbs in _group_transitions().items():
        yield f"    {source} --> {target}: {', '.join(verbs)}"
    for status in Status:
        if status in TERMINAL:
            yield f"    {status} --> {END}"
    yield "```"
    yield ""


def _group_transitions() -> dict[tuple[str, str], list[str]]:
    """Return the verbs between each two states. Transitions to the same state are only in the table."""
    verbs_of: dict[tuple[str, str], list[str]] = {}
    for transition in TRANSITIONS:
        if transition.source != transition.target:
            verbs = verbs_of.setdefault((transition.source or START, transition.target), [])
            if transition.verb not in verbs:
                verbs.append(transition.verb)
    return verbs_of


def _transitions() -> Iterable[str]:
    yield "## Transitions"
    yield ""
    yield "Every transition writes its event, with its actor and reason. Any other transition is refused."
    yield ""
    yield "| verb | from | to | event | by | rule |"
    yield "|---|---|---|---|---|---|"
    yield from (_line(transition) for transition in TRANSITIONS)
    yield ""


def _line(transition: Transition) -> str:
    cells = (transition.verb, transition.source or "(new)", transition.target, transition.event, transition.by)
    return f"| {' | '.join(map(str, cells))} | {transition.rule} |"


if __name__ == "__main__":
    main()
