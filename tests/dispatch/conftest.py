"""Fleets as the tests of the worker have them."""

from __future__ import annotations

from tests.worker.conftest import chance as chance
from tests.worker.conftest import fleet as fleet
