"""`manage.py runscheduler` as a person meets it: one terminal, one Ctrl-C, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.processes import left_over, mark_environment, until

CHECKOUT = Path(__file__).resolve().parents[2]
MANAGE = [sys.executable, str(CHECKOUT / "manage.py")]
START_SEC = 60
STOP_SEC = 10

pytestmark = pytest.mark.sqlite_only


@dataclass
class Product:
    """A started product; everything it prints goes to `printed`."""

    process: subprocess.Popen[str]
    printed: Path
    mark: str

    @property
    def output(self) -> str:
        return self.printed.read_text()

    @property
    def address(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.output)
        return found.group() if found else ""

    def serves(self, path: str) -> bool:
        try:
            return urllib.request.urlopen(self.address + path, timeout=5).status == 200
        except (OSError, ValueError):
            return False

    def children(self) -> dict[str, int]:
        listed = [line.partition(": ") for line in left_over(self.mark)]
        pids = {int(pid): words for pid, _, words in listed if int(pid) != self.process.pid}
        return {"web" if "--socket" in words else "worker": pid for pid, words in pids.items()}


@pytest.fixture
def product(site_env: dict[str, str], tmp_path: Path) -> Iterator[Product]:
    env, mark = mark_environment(site_env)
    printed = tmp_path / "printed"
    with printed.open("w") as out:
        process = subprocess.Popen(
            [*MANAGE, "runscheduler", "--port=0"],
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    started = Product(process, printed, mark)
    try:
        assert until(lambda: started.serves("/healthz"), START_SEC, process), started.output
        assert until(lambda: set(started.children()) == {"web", "worker"}, START_SEC, process), started.output
        yield started
    finally:
        for pid in (process.pid, *started.children().values()):
            _kill(pid)
        process.wait()


def test_con_001_integration_ctrl_c_in_the_terminal_ends_web_and_worker_and_leaves_no_process(product: Product) -> None:
    assert product.serves("/readyz")
    login = urllib.request.urlopen(product.address + "/").read().decode()
    stylesheet = re.search(r'href="(/static/admin/css/base\.[^"]*css)"', login)
    assert stylesheet, login
    assert product.serves(stylesheet.group(1))

    os.killpg(product.process.pid, signal.SIGINT)

    assert product.process.wait(STOP_SEC) == 0, product.output
    assert left_over(product.mark) == []


def test_sigterm_ends_it_too(product: Product) -> None:
    product.process.terminate()
    assert product.process.wait(STOP_SEC) == 0, product.output
    assert left_over(product.mark) == []


def test_a_start_without_collected_files_shows_whole_pages_and_says_so(
    site_env: dict[str, str], tmp_path: Path
) -> None:
    env, mark = mark_environment({**site_env, "STATIC_ROOT": str(tmp_path / "nothing")})
    printed = tmp_path / "printed"
    with printed.open("w") as out:
        command = [*MANAGE, "runscheduler", "--no-worker", "--port=0"]
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, text=True)
    started = Product(process, printed, mark)
    try:
        assert until(lambda: started.serves("/healthz"), START_SEC, process), started.output
        login = urllib.request.urlopen(started.address + "/admin/login/").read().decode()
        sheets = re.findall(r'<link[^>]*href="(/static/[^"]+\.css)"', login)
        assert sheets, login
        assert [sheet for sheet in (*sheets, "/static/jobs/console.css") if not started.serves(sheet)] == []
        assert "collectstatic" in started.output
    finally:
        _kill(process.pid)
        process.wait()


@pytest.mark.parametrize("name", ["web", "worker"])
def test_a_half_that_dies_takes_the_other_along_and_is_named(product: Product, name: str) -> None:
    os.kill(product.children()[name], signal.SIGKILL)
    assert product.process.wait(STOP_SEC) == 1
    assert f"The {name} process exited unexpectedly" in product.output
    assert left_over(product.mark) == []


def test_a_parent_killed_outright_leaves_no_orphan(product: Product) -> None:
    product.process.kill()
    product.process.wait()
    assert until(lambda: left_over(product.mark) == [], STOP_SEC), left_over(product.mark)


def test_a_busy_port_is_one_clear_line(site_env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        refused = _runscheduler(site_env, f"--port={port}")
    assert refused.returncode == 1
    assert refused.stderr.strip().count("\n") == 0
    assert f"127.0.0.1:{port}" in refused.stderr
    assert "PORT=" in refused.stderr


@pytest.mark.parametrize("port", ["http", "-1", "65536"])
def test_a_port_that_is_none_is_refused(site_env: dict[str, str], port: str) -> None:
    refused = _runscheduler(site_env, f"--port={port}")
    assert refused.returncode == 2
    assert "0 to 65535" in refused.stderr


def _runscheduler(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MANAGE, "runscheduler", *arguments], env=env, capture_output=True, text=True, check=False)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_make_run_looks_at_the_port_before_it_installs_and_proposes_a_free_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        command = ["make", "run", f"PORT={port}", f"VENV={tmp_path / 'venv'}"]
        refused = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)
        free_port = int(re.findall(r"PORT=(\d+)", refused.stderr)[-1])
        socket.create_server(("127.0.0.1", free_port)).close()
    assert refused.returncode != 0
    assert free_port != port
    assert ("installing" in refused.stdout, (tmp_path / "venv").exists()) == (False, False)
