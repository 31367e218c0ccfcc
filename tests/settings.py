"""The standalone settings, made fast and deaf to the developer's own `.env`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["ENV_FILE"] = ""
os.environ.setdefault("SECRET_KEY", "only for tests, and long enough for them")

from jobs.conf import from_environ
from jobscheduler.settings import *  # noqa: F403
from jobscheduler.settings import DATABASES, INSTALLED_APPS

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # A file, unlike SQLite's memory, can be shared by the threads and processes of a test.
    name = Path(tempfile.gettempdir()) / f"jobscheduler-test-{os.getpid()}.sqlite3"
    DATABASES["default"]["TEST"] = {"NAME": str(name)}
    # A test loses nothing in a power failure; processes that are killed lose no commit either way.
    pragmas = DATABASES["default"]["OPTIONS"]["init_command"]
    DATABASES["default"]["OPTIONS"]["init_command"] = pragmas.replace("synchronous=FULL", "synchronous=OFF")

if os.environ.get("POOLED"):  # the children of a test may be told to use Django's connection pool
    DATABASES["default"]["CONN_MAX_AGE"] = 0
    DATABASES["default"]["OPTIONS"]["pool"] = True

if level := os.environ.get("ISOLATION"):  # or to ask for an isolation level: one of psycopg's, or the server's default
    from psycopg import IsolationLevel

    del DATABASES["default"]["OPTIONS"]["isolation_level"]
    if level != "DEFAULT":
        DATABASES["default"]["OPTIONS"]["isolation_level"] = IsolationLevel[level]

DEBUG = False
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_AUTOREFRESH = WHITENOISE_USE_FINDERS = True  # nothing is collected for tests
INSTALLED_APPS = [*INSTALLED_APPS, "django_q", "tests.sample_app"]
JOBSCHEDULER: dict[str, object] = from_environ(os.environ)  # the children of a test may be told shorter times
TASKS = {
    "default": {"BACKEND": "jobs.contrib.tasks.JobsBackend", "QUEUES": ["default", "mail"]},
    "press": {
        "BACKEND": "jobs.contrib.tasks.JobsBackend",
        "QUEUES": [],
        "OPTIONS": {"max_retries": 1, "tenant": "press"},
    },
}
