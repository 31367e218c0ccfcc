"""`manage.py backup PATH`: copy a SQLite database while workers are running."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from jobs import db
from jobs.management import base
from jobs.validation.sanitize import escape_unprintable

DATABASE_SUFFIXES = ("", "-wal", "-shm", "-journal")  # of the files that SQLite keeps for a database


class Command(base.CliCommand):
    help = "Copy the SQLite database to PATH while it is in use. On PostgreSQL, print the pg_dump command instead."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path, help="The file to create.")
        parser.add_argument("--force", action="store_true", help="Replace PATH if it exists.")

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["path"]
        if not db.is_sqlite():
            database = db.connection().settings_dict
            flags = {"--host": database.get("HOST"), "--port": database.get("PORT"), "--username": database.get("USER")}
            arguments = [f"{flag}={value}" for flag, value in flags.items() if value]
            command = shlex.join(["pg_dump", "--format=custom", *arguments, f"--file={path}", f"{database['NAME']}"])
            raise CommandError(_("This database is not SQLite. Run: %s") % command, returncode=base.REFUSED)
        _require_writable_path(path)
        _require_other_file(path)
        if path.exists() and not options["force"]:
            raise CommandError(_("%s exists; use --force to replace it.") % _printable(path), returncode=base.REFUSED)
        try:
            self._copy(path)
        except (OSError, sqlite3.Error) as error:
            raise CommandError(_("The backup failed: %s") % error, returncode=base.REFUSED) from None
        self.stdout.write(str(path))

    def _copy(self, path: Path) -> None:
        """Write under a temporary name, check the copy, then rename it, so that PATH is never incomplete."""
        partial = path.with_name(f".backup.{os.getpid()}.partial")
        db.connection().ensure_connection()
        source: sqlite3.Connection = db.connection().connection
        try:
            partial.touch(mode=0o600)  # the copy must not be readable by other users
            with closing(sqlite3.connect(partial)) as target:
                source.backup(target)  # in one step: several would restart with every concurrent write
                target.execute("PRAGMA journal_mode=DELETE")  # without -wal, so that one file is the whole copy
                (result,) = target.execute("PRAGMA quick_check").fetchone()
            if result != "ok":
                raise sqlite3.DatabaseError(result)
            partial.replace(path)
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()


def _require_writable_path(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        values = {"path": _printable(path), "why": getattr(error, "strerror", None) or error}
        message = _("No file can be created at %(path)s: %(why)s") % values
        raise CommandError(message, returncode=base.BAD_INPUT) from None
    if not stat.S_ISREG(mode):
        raise CommandError(_("%s is not a file.") % _printable(path), returncode=base.BAD_INPUT)


def _require_other_file(path: Path) -> None:
    """Raise if the path is the database itself: replacing it would lose the -wal and all commits since."""
    with db.connection().cursor() as cursor:
        cursor.execute("PRAGMA database_list")
        names = [name for _number, _schema, name in cursor.fetchall() if name]
    for own in (Path(name + suffix) for name in names for suffix in DATABASE_SUFFIXES):
        if path.resolve() == own.resolve() or (path.exists() and own.exists() and path.samefile(own)):
            message = _("%s belongs to the database itself; choose another file.") % _printable(path)
            raise CommandError(message, returncode=base.BAD_INPUT)


def _printable(path: Path) -> str:
    return escape_unprintable(str(path))
