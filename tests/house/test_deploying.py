"""What we hand to people who deploy is what it says: the image, the compose file, the units."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.conf import RULES, Conf
from tests.house.dockerfile import CHECKOUT, Stage, stages

BUILD, IMAGE = stages((CHECKOUT / "Dockerfile").read_text())
DEPLOY = CHECKOUT / "docs" / "deploy"


def test_the_image_is_built_in_one_stage_and_run_from_another() -> None:
    assert (BUILD.name, IMAGE.base) == ("build", BUILD.base)
    assert IMAGE.said("COPY")[0] == "--from=build /venv /venv"
    assert not [step for step in IMAGE.said("RUN") if "pip " in step]


def test_the_image_runs_as_nobody_special_and_its_commands_need_no_shell() -> None:
    (user,) = IMAGE.said("USER")
    assert any(step.startswith("useradd --system") and step.endswith(user) for step in IMAGE.said("RUN"))
    assert IMAGE.steps.index(("USER", user)) < [word for word, _ in IMAGE.steps].index("CMD")
    assert json.loads(IMAGE.said("CMD")[-1])[:2] == ["django-admin", "runscheduler"]
    assert json.loads(IMAGE.said("HEALTHCHECK")[-1].partition("CMD ")[2])[0] == "python"


@pytest.mark.parametrize("stage", [BUILD, IMAGE], ids=["build", "image"])
def test_nothing_secret_is_kept_and_all_that_is_copied_is_there_and_let_in(stage: Stage) -> None:
    let_in = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for step in stage.said("COPY"):
        for source in step.split()[:-1] if "--from" not in step else []:
            assert (CHECKOUT / source).exists()
            assert source in let_in
    assert not re.search("SECRET|PASSWORD|TOKEN", " ".join(stage.said("ENV") + stage.said("ARG")))


def test_compose_runs_web_and_workers_from_the_one_image_on_postgresql() -> None:
    made: dict[str, Any] = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())
    services = made["services"]
    assert {name: service["image"] for name, service in services.items() if name != "db"} == dict.fromkeys(
        ["migrate", "web", "worker"], "jobscheduler"
    )
    for name in ("migrate", "web", "worker"):
        assert isinstance(services[name]["command"], list)
        settings = services[name]["environment"]
        assert settings["DATABASE_URL"].startswith("postgres://")
        assert {key.removeprefix("JOBSCHEDULER_") for key in settings if key.startswith("JOBSCHEDULER_")} <= set(RULES)
    assert services["db"]["image"].startswith("postgres:")
    assert int(services["worker"]["stop_grace_period"].removesuffix("s")) > Conf.SHUTDOWN_GRACE_SEC


@pytest.mark.parametrize("unit", sorted(DEPLOY.glob("*.service")), ids=lambda path: path.name)
def test_units_start_what_exists_and_give_a_worker_its_time(unit: Path) -> None:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string(unit.read_text())
    service = read["Service"]
    program = Path(service["ExecStart"].split()[0]).name
    assert program in ("django-admin", "waitress-serve")
    assert service["User"] != "root"
    if "worker" in unit.name:
        assert service["KillMode"] == "mixed"
        assert int(service["TimeoutStopSec"]) > Conf.SHUTDOWN_GRACE_SEC
