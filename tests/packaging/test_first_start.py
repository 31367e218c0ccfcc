"""The first start of the standalone product: an administrator, a secret, and our names unshadowed."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from jobscheduler import require_unshadowed
from jobscheduler.settings_helpers import parse_log_level, read_or_create_secret
from tests.support.commands import run_process


@pytest.fixture(autouse=True)
def no_admin_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADMIN_USERNAME", raising=False)
    monkeypatch.delenv("ADMIN_PASSWORD", raising=False)


@pytest.mark.django_db
def test_the_first_start_prints_a_password_that_works_and_the_second_only_whose_it_is() -> None:
    printed = _ensureadmin()
    found = re.search(r"password: (\S+)", printed)
    assert found, printed
    account = authenticate(username="admin", password=found.group(1))
    assert account is not None
    assert account.is_superuser
    again = _ensureadmin()
    assert "'admin'" in again
    assert found.group(1) not in again


@pytest.mark.django_db
def test_credentials_from_the_environment_are_used_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_USERNAME", "grace")
    monkeypatch.setenv("ADMIN_PASSWORD", "a long passphrase")
    assert "a long passphrase" not in _ensureadmin()
    assert authenticate(username="grace", password="a long passphrase") is not None


@pytest.mark.django_db
def test_a_name_that_the_admin_would_refuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_USERNAME", "a b/c")
    with pytest.raises(CommandError, match="ADMIN_USERNAME") as refused:
        _ensureadmin()
    assert refused.value.returncode == 2
    assert not User.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("password", ["a", "12345678901", "password1", "administrator-grace"])
def test_a_password_that_the_admin_would_refuse_is_refused(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("ADMIN_USERNAME", "administrator-grace")
    monkeypatch.setenv("ADMIN_PASSWORD", password)
    with pytest.raises(CommandError, match="ADMIN_PASSWORD: ") as refused:
        _ensureadmin()
    assert refused.value.returncode == 2
    assert not User.objects.exists()


@pytest.mark.django_db
def test_an_ordinary_account_is_not_made_an_administrator() -> None:
    User.objects.create_user("admin")
    with pytest.raises(CommandError, match="ADMIN_USERNAME"):
        _ensureadmin()
    assert not User.objects.get(username="admin").is_superuser


def test_processes_that_start_together_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(read_or_create_secret, [tmp_path / "secret"] * 32))
    assert len(secrets) == 1
    assert len(secrets.pop()) >= 50
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_package_that_takes_our_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = tmp_path / "site" / "our_word"
    taken.mkdir(parents=True)
    (taken / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(taken.parent))
    with pytest.raises(ImportError, match=re.escape(str(taken))):
        require_unshadowed(["our_word"], install_dir=tmp_path / "packages")


def test_our_own_packages_are_not_taken_for_shadows() -> None:
    require_unshadowed()


def test_a_log_level_that_is_none_is_named_in_the_last_line() -> None:
    env = {**os.environ, "ENV_FILE": "", "SECRET_KEY": "s" * 32, "LOG_LEVEL": "loud"}
    refused = run_process({**env, "DJANGO_SETTINGS_MODULE": "jobscheduler.settings"}, "check")
    assert refused.code == 1
    last = "LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL, not 'loud'."
    assert refused.err.splitlines()[-1].endswith(last)


def test_a_log_level_may_be_written_small() -> None:
    assert parse_log_level("debug") == "DEBUG"


def _ensureadmin() -> str:
    out = StringIO()
    call_command("ensureadmin", stdout=out)
    return out.getvalue()
