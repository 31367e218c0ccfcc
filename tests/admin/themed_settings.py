"""The settings of the suite in a site whose admin has a theme; THEME names it."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [os.environ["THEME"], *INSTALLED_APPS]
