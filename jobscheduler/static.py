"""Serve static files under names with a hash of their content; before `collectstatic`, under their own names."""

from __future__ import annotations

from whitenoise.storage import CompressedManifestStaticFilesStorage


class OptionalManifestStorage(CompressedManifestStaticFilesStorage):
    """A manifest storage that also works before `collectstatic`: WhiteNoise serves the files from the apps."""

    @property
    def is_collected(self) -> bool:
        return bool(self.hashed_files)

    def stored_name(self, name: str) -> str:
        return str(super().stored_name(name)) if self.is_collected else name
