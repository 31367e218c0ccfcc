"""Static files under names that change with their content; before `collectstatic`, under their own names."""

from __future__ import annotations

from whitenoise.storage import CompressedManifestStaticFilesStorage


class CollectedOrNot(CompressedManifestStaticFilesStorage):
    """A first start without `collectstatic` shows whole pages: WhiteNoise finds the files in the apps themselves."""

    @property
    def is_collected(self) -> bool:
        return bool(self.hashed_files)

    def stored_name(self, name: str) -> str:
        return str(super().stored_name(name)) if self.is_collected else name
