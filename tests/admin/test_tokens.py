"""Tokens in the console: shown once, handed out only by those who have what they grant, revoked, never edited."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.test import Client

from jobs.models import ApiToken
from jobs.services import tokens
from tests.support.admin_pages import get_list_url, get_page_url, read_messages, run_action
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

ADD = "add/"


def make(client: Client, **fields: Any) -> Any:
    return client.post(get_list_url(ApiToken) + ADD, {"name": "robot", "tenant": "acme", "scopes": ["read"], **fields})


def shown_in(response: Any) -> str:
    found = re.search(r'id="token">([^<]+)<', response.content.decode())
    assert found is not None
    return found[1]


def test_a_token_is_shown_once_and_nowhere_kept(boss: Client) -> None:
    response = make(boss, scopes=["read", "operate"], days=90)
    written = shown_in(response)
    token = ApiToken.objects.get()
    assert (token.name, token.tenant, token.scopes) == ("robot", "acme", ["read", "operate"])
    assert token.expires_at is not None
    assert tokens.find(written) == token
    assert "no-store" in response["Cache-Control"]
    assert written not in boss.get(get_page_url(token)).content.decode()
    assert written not in str(dump_tables()) + str(list(LogEntry.objects.values())) + str(boss.cookies)
    assert written not in str([session.get_decoded() for session in Session.objects.all()])


def test_without_a_tenant_it_is_of_all(boss: Client) -> None:
    make(boss, tenant="")
    assert ApiToken.objects.get().tenant is None


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a\0b"},
        {"name": "x" * 201},
        {"tenant": "a/b"},
        {"tenant": "x" * 65},
        {"scopes": []},
        {"scopes": ["everything"]},
        {"days": "0"},
        {"days": "9" * 30},
        {"days": "soon"},
        {"addons": "a\0b"},
        {"addons": "x" * 201},
        {"addons": ",".join(map(str, range(51)))},
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(boss: Client, fields: dict[str, Any]) -> None:
    assert make(boss, **fields).status_code == 200
    assert not ApiToken.objects.exists()


def test_a_name_is_free_again_once_its_token_is_revoked(boss: Client) -> None:
    make(boss)
    refused = make(boss)
    assert "has a token of this name" in refused.content.decode()
    assert ApiToken.objects.count() == 1
    make(boss, tenant="globex")
    make(boss, tenant="")
    assert "has a token of this name" in make(boss, tenant="").content.decode()
    tokens.revoke(ApiToken.objects.get(tenant="acme").pk)
    shown_in(make(boss))
    assert sorted(ApiToken.objects.filter(tenant="acme").values_list("name", flat=True)) == ["robot", "robot"]


@pytest.mark.parametrize(
    ("written", "addons"), [("", None), ("visuals", ["visuals"]), (" visuals , sounds,visuals,", ["visuals", "sounds"])]
)
def test_a_token_is_bound_to_addons(boss: Client, written: str, addons: list[str] | None) -> None:
    shown_in(make(boss, scopes=["work"], addons=written))
    token = ApiToken.objects.get()
    assert token.addons == addons
    page = boss.get(get_page_url(token)).content.decode()
    assert all(name in page for name in addons or ["all"])


def test_revoking_takes_the_permission_and_is_kept_in_the_history(boss: Client, looker: Client) -> None:
    token, written = tokens.create("robot")
    run_action(looker, "revoke", [token])
    assert tokens.find(written) is not None
    assert "1 token revoked" in read_messages(run_action(boss, "revoke", [token]))
    assert tokens.find(written) is None
    assert LogEntry.objects.get().change_message == "revoke"
    assert "0 tokens revoked" in read_messages(run_action(boss, "revoke", [token]))


def test_nothing_of_a_token_is_edited_or_deleted(boss: Client) -> None:
    token, _ = tokens.create("robot")
    before = dump_tables()
    assert boss.post(get_page_url(token), {"name": "other", "scopes": ["admin"]}).status_code == 403
    assert boss.post(get_page_url(token).replace("/change/", "/delete/"), {"post": "yes"}).status_code == 403
    assert dump_tables() == before


def test_a_token_says_whether_it_is_valid_and_is_revoked_from_its_page_after_a_second_look(boss: Client) -> None:
    token, written = tokens.create("robot")
    assert "valid" in boss.get(get_list_url(ApiToken)).content.decode()
    url = get_page_url(token).replace("/change/", "/verb/revoke/")
    assert url in boss.get(get_page_url(token)).content.decode()
    assert "Nothing has changed yet." in boss.post(url).content.decode()
    assert tokens.find(written) is not None
    assert boss.post(url, {"confirmed": "1"}).status_code == 302
    assert tokens.find(written) is None
    assert "revoked" in boss.get(get_list_url(ApiToken)).content.decode()
    assert url not in boss.get(get_page_url(token)).content.decode()
