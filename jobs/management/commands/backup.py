"""`manage.py backup PATH`: a copy of a SQLite database, taken beside running workers."""

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

BESIDE = ("", "-wal", "-shm", "-journal")  # what SQLite keeps under a database's name


class Command(base.CliCommand):
    help = "Copies the SQLite database to PATH while it is in use. On PostgreSQL it says how pg_dump does it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path, help="A file that does not exist yet.")
        parser.add_argument("--force", action="store_true", help="Take the place of a file that does.")

    def handle(self, *args: Any, **given: Any) -> None:
        path: Path = given["path"]
        if not db.is_sqlite():
            named = db.connection().settings_dict
            where = {"--host": named.get("HOST"), "--port": named.get("PORT"), "--username": named.get("USER")}
            options = [f"{option}={value}" for option, value in where.items() if value]
            command = shlex.join(["pg_dump", "--format=custom", *options, f"--file={path}", f"{named['NAME']}"])
            raise CommandError(_("This database is not SQLite. Run: %s") % command, returncode=base.REFUSED)
        _require_a_place_for_a_file(path)
        _require_another_file(path)
        if path.exists() and not given["force"]:
            raise CommandError(_("%s exists; say --force to replace it.") % _printable(path), returncode=base.REFUSED)
        try:
            self._copy(path)
        except (OSError, sqlite3.Error) as error:
            raise CommandError(_("No copy was made: %s") % error, returncode=base.REFUSED) from None
        self.stdout.write(str(path))

    def _copy(self, path: Path) -> None:
        """Whole or not at all: under another name until it has been read back."""
        partial = path.with_name(f".backup.{os.getpid()}.partial")
        db.connection().ensure_connection()
        source: sqlite3.Connection = db.connection().connection
        try:
            partial.touch(mode=0o600)  # what is in there is nobody else's business
            with closing(sqlite3.connect(partial)) as target:
                source.backup(target)  # in one go, from one snapshot: in steps, each write beside it would restart it
                target.execute("PRAGMA journal_mode=DELETE")  # one file is the whole copy
                (verdict,) = target.execute("PRAGMA quick_check").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            partial.replace(path)
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()


def _require_a_place_for_a_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        said = {"path": _printable(path), "why": getattr(error, "strerror", None) or error}
        message = _("No file can be made at %(path)s: %(why)s") % said
        raise CommandError(message, returncode=base.BAD_INPUT) from None
    if not stat.S_ISREG(mode):
        raise CommandError(_("%s is not a file.") % _printable(path), returncode=base.BAD_INPUT)


def _require_another_file(path: Path) -> None:
    """A copy in the place of its original would lose what is committed meanwhile, and what is in the -wal."""
    with db.connection().cursor() as cursor:
        cursor.execute("PRAGMA database_list")
        names = [name for _number, _schema, name in cursor.fetchall() if name]
    for own in (Path(name + suffix) for name in names for suffix in BESIDE):
        if path.resolve() == own.resolve() or (path.exists() and own.exists() and path.samefile(own)):
            message = _("%s belongs to the database itself; choose another file.") % _printable(path)
            raise CommandError(message, returncode=base.BAD_INPUT)


def _printable(path: Path) -> str:
    return escape_unprintable(str(path))
