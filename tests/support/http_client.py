"""Plain HTTP to a server process, without retries."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

Response = tuple[int, bytes]


class HttpClient:
    """Sends requests without retries; the result is None if no response came."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.headers = f"{url}/system/scheduler", {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> Response | None:
        return self._send(urllib.request.Request(self.url + path, headers=self.headers))

    def post(self, path: str, body: dict[str, Any]) -> Response | None:
        headers = {**self.headers, "Content-Type": "application/json"}
        return self._send(urllib.request.Request(self.url + path, json.dumps(body).encode(), headers))

    def parse(self, answer: Response | None) -> dict[str, Any]:
        assert answer is not None
        assert answer[0] == 200, answer
        return dict(json.loads(answer[1]))

    def _send(self, request: urllib.request.Request) -> Response | None:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()
        except OSError:
            return None
