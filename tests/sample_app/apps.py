"""The sample app; in a process that was told to go wrong, it sees to that."""

from __future__ import annotations

import os

from django.apps import AppConfig


class SampleConfig(AppConfig):
    name = "tests.sample_app"
    label = "sample"

    def ready(self) -> None:
        if wanted := os.environ.get("SABOTAGE"):
            from tests.support import sabotage

            sabotage.begin(wanted.split(","))
