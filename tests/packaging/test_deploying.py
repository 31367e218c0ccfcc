"""What we hand to people who deploy is what it says: the image, the compose file, the units."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import environ
import pytest
import yaml
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands

from jobs.conf import RULES, Conf, read_settings
from jobscheduler.health import PROBES
from jobscheduler.settings_helpers import require_long_secret
from tests.packaging import kubernetes_manifests, processes
from tests.packaging.dockerfile import CHECKOUT, Stage, stages
from tests.support.commands import run_process

BUILD, IMAGE = stages((CHECKOUT / "Dockerfile").read_text())
DEPLOY = CHECKOUT / "docs" / "deploy"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
PODS = ("Job jobscheduler-migrate", "Deployment jobscheduler-web", "Deployment jobscheduler-worker")
NEEDED = {"SECRET_KEY": "s" * 32, "POSTGRES_PASSWORD": "p"}


def test_the_image_is_built_in_one_stage_and_run_from_another() -> None:
    assert (BUILD.name, IMAGE.base) == ("build", BUILD.base)
    assert IMAGE.list_arguments("COPY")[0] == "--from=build /venv /venv"
    assert not [step for step in IMAGE.list_arguments("RUN") if "pip " in step]


def test_the_image_runs_as_nobody_special_and_its_commands_need_no_shell() -> None:
    (user,) = IMAGE.list_arguments("USER")
    assert int(user) > 0  # an orchestrator cannot tell from a name whether it is root
    assert any(step.startswith(f"useradd --system --uid {user} ") for step in IMAGE.list_arguments("RUN"))
    assert IMAGE.steps.index(("USER", user)) < [word for word, _ in IMAGE.steps].index("CMD")
    assert json.loads(IMAGE.list_arguments("CMD")[-1])[:2] == ["django-admin", "runscheduler"]
    assert json.loads(IMAGE.list_arguments("HEALTHCHECK")[-1].partition("CMD ")[2])[0] == "python"


@pytest.mark.parametrize("stage", [BUILD, IMAGE], ids=["build", "image"])
def test_nothing_secret_is_kept_and_all_that_is_copied_is_there_and_let_in(stage: Stage) -> None:
    let_in = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for step in stage.list_arguments("COPY"):
        for source in step.split()[:-1] if "--from" not in step else []:
            assert (CHECKOUT / source).exists()
            assert source in let_in
    assert not re.search("SECRET|PASSWORD|TOKEN", " ".join(stage.list_arguments("ENV") + stage.list_arguments("ARG")))


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


@pytest.mark.parametrize("name", ["migrate", "web", "worker"])
def test_containers_have_no_privileges_and_a_read_only_file_system(name: str) -> None:
    service = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"][name]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert (service["read_only"], service["tmpfs"]) == (True, ["/tmp"])
    assert "ADMIN_PASSWORD" not in service["environment"]


@pytest.mark.parametrize("name", ["migrate", "web", "worker"])
def test_what_a_deployment_sets_reaches_the_containers_and_what_it_does_not_stays_unset(name: str) -> None:
    passed = {
        "ALLOWED_HOSTS": "scheduler.example.com",
        "CSRF_TRUSTED_ORIGINS": "https://scheduler.example.com",
        "HTTPS": "True",
        "HSTS_SECONDS": "60",
        "SESSION_SECONDS": "3600",
        "SESSION_IDLE_SECONDS": "600",
        "DJANGO_Q": "True",
        "JOBSCHEDULER_NUM_PROXIES": "2",
        "LOG_LEVEL": "DEBUG",
        "TIME_ZONE": "Europe/Berlin",
        "JOBSCHEDULER_WEBHOOK_SECRET_KEY": "a key of its own",
        "JOBSCHEDULER_RETENTION_DAYS": "30",
    }
    assert passed.items() <= container(name, {**NEEDED, **passed}).items()
    assert passed.keys() & container(name, NEEDED).keys() == {"ALLOWED_HOSTS"}


def test_the_global_limit_follows_the_scale() -> None:
    services = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]
    option = next(word for word in services["worker"]["command"] if word.startswith("--concurrency="))
    slots = services["worker"]["deploy"]["replicas"] * int(option.partition("=")[2])
    assert json.loads(container("worker", NEEDED)["JOBSCHEDULER_LIMITS"]) == {"global": slots}
    scaled = container("worker", {**NEEDED, "GLOBAL_LIMIT": "16"})
    assert json.loads(scaled["JOBSCHEDULER_LIMITS"]) == {"global": 16}


def test_any_password_of_the_database_will_do() -> None:
    password = "p@ss/w#rd?%41: {x}"
    env = container("web", {**NEEDED, "POSTGRES_PASSWORD": password})
    database = environ.Env.db_url_config(env["DATABASE_URL"])
    assert (database["HOST"], database["PORT"], database["NAME"]) == ("db", 5432, "scheduler")
    assert (database["PASSWORD"], env["PGPASSWORD"]) == ("", password)


@pytest.mark.pg_only
@pytest.mark.django_db(transaction=True)
def test_a_password_beside_the_url_opens_the_database(process_env: dict[str, str]) -> None:
    url = re.fullmatch(r"(postgres(?:ql)?://[^:]+):([^@]+)(@.*)", process_env["DATABASE_URL"])
    assert url
    env = {**process_env, "DATABASE_URL": url[1] + url[3], "PGPASSWORD": url[2]}
    assert run_process(env, "schedulerinfo").code == 0
    assert run_process({**env, "PGPASSWORD": "another"}, "schedulerinfo").code == 1


def test_the_manifests_of_kubernetes_agree_with_the_image_the_settings_and_each_other() -> None:
    kinds = load_manifests("kubernetes.yaml")
    pods = {name: kinds[name]["spec"]["template"] for name in PODS}
    (user,) = IMAGE.list_arguments("USER")
    for name, pod in pods.items():
        (program,) = pod["spec"]["containers"]
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": int(user),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert program["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert [mount["mountPath"] for mount in program["volumeMounts"]] == ["/tmp"]
        assert program["command"][0] == "django-admin"
        assert program["command"][1] in get_commands()
        assert [source[key]["name"] for source in program["envFrom"] for key in source] == ["jobscheduler"] * 2
        if name != "Job jobscheduler-migrate":
            assert kinds[name]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert len({pod["spec"]["containers"][0]["image"] for pod in pods.values()}) == 1

    web, worker = pods["Deployment jobscheduler-web"], pods["Deployment jobscheduler-worker"]
    service = kinds["Service jobscheduler"]["spec"]
    assert service["selector"] == web["metadata"]["labels"]
    (program,) = web["spec"]["containers"]
    assert service["ports"][0]["targetPort"] == program["ports"][0]["name"]
    assert f"--port={program['ports'][0]['containerPort']}" in program["command"]
    probes = {name: program[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert set(probes.values()) == set(PROBES)
    assert worker["spec"]["terminationGracePeriodSeconds"] > Conf.SHUTDOWN_GRACE_SEC
    assert "livenessProbe" not in worker["spec"]["containers"][0]  # it would kill handlers in an outage of the database


@pytest.mark.once
@pytest.mark.parametrize("version", kubernetes_manifests.VERSIONS)
def test_the_manifests_follow_the_schemas_of_kubernetes(version: str, tmp_path: Path) -> None:
    program = shutil.which(kubernetes_manifests.PROGRAM, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("kubernetes-validate is missing; `python -m tests.packaging.kubernetes_manifests` installs it")
    kubernetes_manifests.validate(Path(program), version)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((DEPLOY / "kubernetes.yaml").read_text().replace("terminationGracePeriodSeconds", "gracePeriod"))
    with pytest.raises(AssertionError, match="gracePeriod"):
        kubernetes_manifests.validate(Path(program), version, wrong)


def test_the_environment_of_kubernetes_is_known_and_its_limit_is_that_of_all_workers() -> None:
    kinds, scaled = load_manifests("kubernetes.yaml"), load_manifests("keda.yaml")
    values, secrets = kinds["ConfigMap jobscheduler"]["data"], kinds["Secret jobscheduler"]["stringData"]
    composed = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]["web"]["environment"]
    assert {*values, *secrets} <= set(composed)
    assert all(isinstance(value, str) for value in values.values())
    with pytest.raises(ImproperlyConfigured, match="SECRET_KEY"):  # the example cannot be used as it is
        require_long_secret(secrets["SECRET_KEY"])
    assert read_settings({"WEBHOOK_SECRET_KEY": secrets["JOBSCHEDULER_WEBHOOK_SECRET_KEY"]}).problems

    scaler = scaled["ScaledObject jobscheduler-worker"]["spec"]
    worker = kinds[f"Deployment {scaler['scaleTargetRef']['name']}"]["spec"]["template"]["spec"]["containers"][0]
    slots = int(next(word for word in worker["command"] if "--concurrency=" in word).partition("=")[2])
    assert int(scaler["triggers"][0]["metadata"]["threshold"]) == slots
    assert json.loads(values["JOBSCHEDULER_LIMITS"]) == {"global": slots * scaler["maxReplicaCount"]}
    assert scaler["minReplicaCount"] > 0  # else nothing fires schedules


def load_manifests(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / name).read_text())
    return {f"{document['kind']} {document['metadata']['name']}": document for document in documents}


def container(name: str, given: dict[str, str]) -> dict[str, str]:
    """The environment that compose makes of `given`: a variable without a value is handed on, if it is set."""
    services = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]
    variables: dict[str, str | None] = services[name]["environment"]
    made = {
        key: given.get(key) if value is None else substitute_variables(value, given) for key, value in variables.items()
    }
    return {key: value for key, value in made.items() if value is not None}


def substitute_variables(value: str, given: dict[str, str]) -> str:
    """As compose does: a default ends at the first closing brace."""

    def one(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        assert kind != "?" or given.get(name), rest
        return given.get(name) or (rest if kind == "-" else "")

    return VARIABLE.sub(one, value)


def test_the_rehearsal_of_the_image_is_a_target_of_make() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    steps = processes.run(["make", "--dry-run", "rehearse"], cwd=CHECKOUT, env=env)
    assert "-m tests.packaging.dockerfile" in steps.splitlines()[-1]


UNITS = pytest.mark.parametrize("unit", sorted(DEPLOY.glob("*.service")), ids=lambda path: path.name)


@UNITS
def test_units_start_what_exists_and_give_a_worker_its_time(unit: Path) -> None:
    service = read_service(unit)
    assert Path(service["ExecStart"].split()[0]).name == "django-admin"
    assert service["User"] != "root"
    if "worker" in unit.name:
        assert service["KillMode"] == "mixed"
        assert int(service["TimeoutStopSec"]) > Conf.SHUTDOWN_GRACE_SEC


@UNITS
def test_units_can_write_one_directory_and_gain_no_privilege(unit: Path) -> None:
    service = read_service(unit)
    assert (service["ProtectSystem"], service["ProtectHome"], service["PrivateTmp"]) == ("strict", "true", "true")
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("true", "")
    assert service["SystemCallFilter"] == "@system-service"
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert "ReadWritePaths" not in service


@UNITS
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_every_line_of_the_units(unit: Path, tmp_path: Path) -> None:
    program = read_service(unit)["ExecStart"].split()[0]
    installed = tmp_path / unit.name.replace("@", "@1")
    installed.write_text(unit.read_text().replace(program, "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", installed], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def read_service(unit: Path) -> configparser.SectionProxy:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string(unit.read_text())
    return read["Service"]
