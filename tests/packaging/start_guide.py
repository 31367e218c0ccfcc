"""The five-minute start, followed line by line: ends with a look at the admin of the site that it made."""

from __future__ import annotations

import re
import shlex
import subprocess
from contextlib import closing, suppress
from http.cookiejar import CookieJar
from pathlib import Path
from socket import create_server
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from tests.packaging import doc_examples
from tests.packaging.processes import run, until

GUIDE = "start.md"
START_SEC = 30


def follow(home: Path, env: dict[str, str], *, installed: bool = False) -> str:
    """The list of jobs in the admin, as the guide's own superuser sees it."""
    for language, text in doc_examples.blocks(GUIDE):
        if language == "python":
            doc_examples.write(text, home)
            continue
        for line in text.splitlines():
            if line.endswith("runserver"):
                return look(line, home, env)
            if not (installed and line.startswith("pip install")):
                run(["sh", "-ec", line], cwd=home, env=env)
    raise AssertionError("the guide does not start the site")


def is_completed(page: str, job_type: str) -> bool:
    rows = re.findall(r"<tr>.*?</tr>", page, re.DOTALL)
    return [bool(re.search(r"\bCompleted\b", row)) for row in rows if job_type in row] == [True]


def look(line: str, home: Path, env: dict[str, str]) -> str:
    """Start the site as the line says, at a free port; log in; read the list."""
    with closing(create_server(("127.0.0.1", 0))) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [*shlex.split(line), address, "--noreload"]
    process = subprocess.Popen(command, cwd=home, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        browser = build_opener(HTTPCookieProcessor(CookieJar()))
        assert until(lambda: _answers(browser, address), START_SEC, process), process.poll()
        return _list_of_jobs(browser, f"http://{address}/admin/")
    finally:
        process.terminate()
        process.communicate(timeout=START_SEC)


def _list_of_jobs(browser: OpenerDirector, admin: str) -> str:
    form = browser.open(f"{admin}login/").read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
    assert token
    name, password = _superuser()
    fields = {"csrfmiddlewaretoken": token[1], "username": name, "password": password, "next": "/admin/"}
    welcome = browser.open(f"{admin}login/", urlencode(fields).encode()).read().decode()
    assert "Overview" in welcome
    page: str = browser.open(f"{admin}jobscheduler_jobs/job/").read().decode()
    return page


def _superuser() -> tuple[str, str]:
    (line,) = [line for line in doc_examples.commands(GUIDE) if "createsuperuser" in line]
    match = re.search(r"PASSWORD=(\S+) .*--username (\S+)", line)
    assert match
    return match[2], match[1]


def _answers(browser: OpenerDirector, address: str) -> bool:
    with suppress(URLError, ConnectionError):
        return bool(browser.open(f"http://{address}/scheduler/healthz").status == 200)
    return False
