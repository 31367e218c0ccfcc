"""A client of the API with a token of its own."""

from __future__ import annotations

from itertools import count
from typing import Any

from django.http import HttpResponse
from django.test import Client

from jobs.actors import make_token_actor
from jobs.services import tokens

_numbers = count(2)


class ApiClient:
    """Paths are relative to /api. `tenant` None makes a token for all tenants."""

    def __init__(self, *scopes: str, tenant: str | None = "default", **fields: Any) -> None:
        name, scopes = find_free_name(tenant), scopes or ("admin",)
        self.token, written = tokens.create(name, tenant=tenant, scopes=scopes, **fields)
        self.actor_name = make_token_actor(self.token.name, self.token.prefix, self.token.pk).name
        self.headers = {"Authorization": f"Bearer {written}"}
        self.client = Client()

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(f"/api{path}", headers={**self.headers, **headers})

    def get_page(self, path: str) -> HttpResponse:
        """Get a path outside of /api."""
        return self.client.get(path, headers=self.headers)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        content: Any = {} if body is None else {"data": body, "content_type": "application/json"}
        return getattr(self.client, method)(f"/api{path}", headers={**self.headers, **headers}, **content)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.send("post", path, body, **headers)

    def put(self, path: str, body: Any = None) -> Any:
        return self.send("put", path, body)

    def patch(self, path: str, body: Any = None) -> Any:
        return self.send("patch", path, body)

    def delete(self, path: str) -> Any:
        return self.send("delete", path)

    def list_all(self, path: str, limit: int) -> list[dict[str, Any]]:
        """Return all items of a list, read page by page."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            answer = self.get(f"{path}{'&' if '?' in path else '?'}limit={limit}{cursor}").json()
            found += answer["items"]
            if answer["next_cursor"] is None:
                return found
            cursor = f"&cursor={answer['next_cursor']}"


def find_free_name(tenant: str | None) -> str:
    """Return a name that no other token of the tenant has."""
    return f"tests {next(_numbers)}" if tokens.is_name_taken("tests", tenant) else "tests"


def read_error_locations(response: Any) -> list[list[Any]]:
    """Return the locations of the errors in a 422 response."""
    assert response.status_code == 422, response.content
    return [error["loc"] for error in response.json()["errors"]]
