from __future__ import annotations

from tests.admin.conftest import boss as boss
from tests.admin.conftest import looker as looker
from tests.worker.conftest import chance as chance
from tests.worker.conftest import fleet as fleet
