"""The site of `suite.py`: its own rows in one database, the queue in another."""

from __future__ import annotations

import os
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.settings import *  # noqa: F403 — all of them, but for the databases
from tests.settings import DATABASES

DATABASES["queue"] = deepcopy(DATABASES["default"])
for alias, database in DATABASES.items():
    name = f"jobscheduler_two_{alias}_{os.getpid()}"
    if database["ENGINE"].endswith("sqlite3"):
        name = str(Path(tempfile.gettempdir()) / f"{name}.sqlite3")
    database["TEST"] = {"NAME": name}
DATABASE_ROUTERS = [f"{__name__}.QueueRouter"]


class QueueRouter:
    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "queue" if model._meta.app_label.startswith("jobscheduler_") else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (db == "queue") == app_label.startswith("jobscheduler_")
