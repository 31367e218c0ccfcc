"""The standalone product, with the benchmarks' own job types beside it."""

from __future__ import annotations

import os

os.environ["ENV_FILE"] = os.devnull
os.environ.setdefault("SECRET_KEY", "only for benchmarks")

from jobscheduler.settings import *  # noqa: F403
from jobscheduler.settings import INSTALLED_APPS, STORAGES
from jobscheduler.settings import JOBSCHEDULER as SAID

INSTALLED_APPS = [*INSTALLED_APPS, "bench"]
DEBUG = False
STORAGES = {**STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}
JOBSCHEDULER = {"LIMITS": {"global": None}, **SAID}  # a worker that is measured may be told others
