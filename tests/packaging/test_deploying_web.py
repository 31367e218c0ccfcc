"""The web server as the image, the compose file and the unit start it, behind a proxy that ends TLS."""

from __future__ import annotations

import configparser
import http.client
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.packaging.dockerfile import CHECKOUT, health_check, stages
from tests.packaging.processes import left_over, mark_environment, until

IMAGE = stages((CHECKOUT / "Dockerfile").read_text())[-1]
BIN = Path(sys.executable).parent
PUBLIC = "scheduler.example.com"
START_SEC = 60
STOP_SEC = 15

pytestmark = pytest.mark.sqlite_only


def image() -> list[str]:
    found: list[str] = json.loads(IMAGE.list_arguments("CMD")[-1])
    return found


def compose() -> list[str]:
    found: list[str] = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]["web"]["command"]
    return found


def unit() -> list[str]:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.read(CHECKOUT / "docs" / "deploy" / "jobscheduler-web.service")
    return shlex.split(read["Service"]["ExecStart"])


@pytest.fixture(scope="module", params=[image, compose, unit], ids=lambda made: made.__name__)
def port(
    request: pytest.FixtureRequest, site_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Where it listens, as started by the very words of the file, known to the public by one name."""
    free = free_port()
    env, mark = mark_environment({**site_env, "HTTPS": "True", "ALLOWED_HOSTS": PUBLIC})
    printed = tmp_path_factory.mktemp("web") / "printed"
    with printed.open("w") as out:
        process = subprocess.Popen(on(free, request.param()), env=env, stdout=out, stderr=subprocess.STDOUT, text=True)
    try:
        assert until(lambda: answers(free), START_SEC, process), printed.read_text()
        yield free
    finally:
        process.terminate()
        process.wait(STOP_SEC)
    assert (process.returncode, left_over(mark)) == (0, []), printed.read_text()


def test_a_request_that_came_by_tls_is_answered_and_another_is_sent_there(port: int) -> None:
    by_tls = ask(port, {"Host": PUBLIC, "X-Forwarded-Proto": "https"})
    assert (by_tls.status, by_tls.getheader("Strict-Transport-Security")) == (200, "max-age=31536000")
    plain = ask(port, {"Host": PUBLIC})
    assert (plain.status, plain.getheader("Location")) == (301, f"https://{PUBLIC}/admin/login/")


def test_the_images_health_check_passes_where_only_the_public_name_is_allowed(port: int) -> None:
    program, *words = health_check(IMAGE, port)
    assert subprocess.run([str(BIN / program), *words], check=False).returncode == 0
    assert ask(port, {"Host": "localhost", "X-Forwarded-Proto": "https"}).status == 400  # but for probes


def on(port: int, words: list[str]) -> list[str]:
    """The same command from this environment, on another port."""
    here = [str(BIN / Path(words[0]).name), *words[1:]]
    command = [f"--port={port}" if word.startswith("--port") else word for word in here]
    return command if command != here else [*here, f"--port={port}"]


def ask(port: int, headers: dict[str, str]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/admin/login/", headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def answers(port: int) -> bool:
    try:
        return ask(port, {"Host": PUBLIC}).status > 0
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
        return number
