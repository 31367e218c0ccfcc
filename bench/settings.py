"""The settings of the standalone product, with the job types of the benchmarks."""

from __future__ import annotations

import os

os.environ["ENV_FILE"] = os.devnull
os.environ.setdefault("SECRET_KEY", "only for benchmarks, and long enough for them")

from jobs import conf
from jobscheduler.settings import *  # noqa: F403
from jobscheduler.settings import INSTALLED_APPS, STORAGES
from jobscheduler.settings import JOBSCHEDULER as BASE

INSTALLED_APPS = [*INSTALLED_APPS, "bench"]
DEBUG = False
STORAGES = {**STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}
# A benchmark may set other limits for its workers, by the environment.
JOBSCHEDULER = {**BASE, "LIMITS": {"global": None}, **conf.from_environ(os.environ)}
