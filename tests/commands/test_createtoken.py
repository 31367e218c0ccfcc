"""`manage.py createtoken` prints the token alone on stdout, and one line for bad input."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs import clock
from jobs.models import ApiToken
from jobs.services import tokens
from tests.support.commands import call, run_process


@pytest.mark.django_db
def test_the_token_is_alone_on_stdout_and_works() -> None:
    result = call("createtoken", "robot")
    assert result.code == 0
    token = tokens.find(result.out.removesuffix("\n"))
    assert token is not None
    assert (token.name, token.tenant, token.scopes, token.expires_at) == ("robot", "default", ["read", "submit"], None)
    assert result.out.startswith(token.prefix)


@pytest.mark.django_db
def test_options_set_tenant_scopes_and_lifetime() -> None:
    call("createtoken", "a", "--tenant=acme", "--scopes", "operate,read", "--expires", "90d")
    call("createtoken", "b", "--all-tenants", "--scopes=admin")
    call("createtoken", "c", "--scopes=work", "--addon=visuals", "--addon", "sounds")
    acme, all_tenants, worker = ApiToken.objects.order_by("name")
    assert (acme.tenant, acme.scopes) == ("acme", ["read", "operate"])
    assert acme.expires_at is not None
    assert abs(acme.expires_at - clock.now() - timedelta(days=90)) < timedelta(minutes=5)
    assert (all_tenants.tenant, all_tenants.scopes, all_tenants.addons) == (None, ["admin"], None)
    assert (worker.addons, worker.maker) == (["visuals", "sounds"], None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [
        ("",),
        ("a\nb",),
        ("x" * 201,),
        ("robot", "--tenant", "a/b"),
        ("robot", "--tenant", ""),
        ("robot", "--scopes", "everything"),
        ("robot", "--scopes", ","),
        ("robot", "--expires", "soon"),
        ("robot", "--expires", "0d"),
        ("robot", "--expires=-1d"),
        ("robot", "--addon", ""),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = call("createtoken", *arguments)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.strip().splitlines()) == 1
    assert not ApiToken.objects.exists()


@pytest.mark.django_db
def test_a_name_that_the_tenant_has_is_refused() -> None:
    assert call("createtoken", "robot").code == 0
    result = call("createtoken", "robot")
    assert (result.code, result.out, len(result.err.strip().splitlines())) == (1, "", 1)
    assert "robot" in result.err
    assert call("createtoken", "robot", "--tenant=acme").code == 0
    assert ApiToken.objects.count() == 2


@pytest.mark.once
def test_as_a_process_it_prints_nothing_else(process_env: dict[str, str]) -> None:
    result = run_process(process_env, "createtoken", "robot", "--tenant=x")
    assert (result.code, len(result.out.split())) == (0, 1)
    assert run_process(process_env, "createtoken", "robot", "--tenant=x", "--all-tenants").code == 2
    assert run_process(process_env, "createtoken").code == 2
