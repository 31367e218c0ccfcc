"""The sample app; it switches on the faults that SABOTAGE names."""

from __future__ import annotations

import os

from django.apps import AppConfig


class SampleConfig(AppConfig):
    name = "tests.sample_app"
    label = "sample"

    def ready(self) -> None:
        if wanted := os.environ.get("SABOTAGE"):
            from tests.support import sabotage

            sabotage.switch_on(wanted.split(","))
