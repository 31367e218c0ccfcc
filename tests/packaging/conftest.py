"""The built wheel, a Python that has it, and a site to start: made once for all tests of the house."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.packaging.processes import run

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = ("jobs", "schedules", "webhooks", "jobscheduler", "templates", "tests")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no earlier build in the checkout leaks into it."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "manage.py"):
        shutil.copy(CHECKOUT / name, source)
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", source / "dist", source])
    return next((source / "dist").glob("*.whl"))


@pytest.fixture(scope="session")
def foreign_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel installed; what the wheel needs is borrowed from the running environment."""
    home = tmp_path_factory.mktemp("venv")
    run([sys.executable, "-m", "venv", "--without-pip", home])
    python = home / "bin" / "python"
    packages = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    Path(packages, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel])
    return python


@pytest.fixture(scope="session")
def site_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A migrated database and collected static files of our own, as `make run` prepares them."""
    home = tmp_path_factory.mktemp("standalone")
    files = {"DATABASE_URL": f"sqlite:///{home / 'db.sqlite3'}", "STATIC_ROOT": str(home / "static")}
    fixed = {"DJANGO_SETTINGS_MODULE": "jobscheduler.settings", "ENV_FILE": "", "SECRET_KEY": "s" * 32}
    env = {**os.environ, **files, **fixed, "JOBSCHEDULER_SHUTDOWN_GRACE_SEC": "5"}
    for command in (["migrate"], ["collectstatic", "--no-input"]):
        subprocess.run([sys.executable, CHECKOUT / "manage.py", *command, "--verbosity=0"], env=env, check=True)
    return env
