"""Everything in one terminal: the web server and a worker, which live and end together; or the web server alone."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from queue import Empty, SimpleQueue
from socket import AF_INET, AF_INET6, create_server, socket
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.servers.basehttp import get_internal_wsgi_application
from django.urls import NoReverseMatch, reverse

from jobs.checks import TAG
from jobs.conf import conf
from jobs.management.command_child import die_with

log = logging.getLogger("jobs.web")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_SEC = 3  # beyond the worker's own grace, for processes to wind down
REPEAT_SEC = 1  # one Ctrl-C can arrive twice, from the terminal and from make


class Command(BaseCommand):
    requires_system_checks = [TAG]
    help = "Runs the web server and a worker in one terminal; Ctrl-C ends both gracefully, a second one at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
        parser.add_argument("--port", type=_port, default=8000, help="0 picks a free one (default %(default)s)")
        parser.add_argument("--threads", type=int, default=8, help="requests served at once (default %(default)s)")
        worker = parser.add_mutually_exclusive_group()
        worker.add_argument("--concurrency", type=int, help="jobs the worker runs at once")
        worker.add_argument("--no-worker", action="store_true", help="the web server alone; workers run elsewhere")
        parser.add_argument("--socket", type=int, help=SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        if find_spec("waitress") is None:
            raise CommandError("runscheduler needs waitress: pip install 'django-jobscheduler[standalone]'.")
        if options["socket"] is not None:
            serve(options["socket"], threads=options["threads"])
            return
        listening = self._listen(options["host"], options["port"])
        if options["no_worker"]:
            self._greet(listening)
            serve(listening.detach(), threads=options["threads"])
        else:
            self._run(listening, options["threads"], options["concurrency"])

    def _run(self, listening: socket, threads: int, concurrency: int | None) -> None:
        happenings = _heed_signals()
        descriptor = listening.fileno()
        web = Child("web", "runscheduler", f"--socket={descriptor}", f"--threads={threads}", pass_fds=[descriptor])
        worker = Child("worker", "worker", *([f"--concurrency={concurrency}"] if concurrency else []))
        for child in (web, worker):
            threading.Thread(target=_watch, args=(child, happenings), daemon=True).start()
        self._greet(listening)
        listening.close()  # the web process has it now; when that ends, the port is free
        first = happenings.get()
        killed = _stop([web, worker], happenings)
        if isinstance(first, Child):
            raise CommandError(
                f"The {first.name} process ended by itself (exit code {first.wait()}); stopped the rest."
            )
        if killed:
            raise CommandError(f"Did not stop in time and was killed: {', '.join(child.name for child in killed)}.")
        if failed := [child for child in (web, worker) if not child.ended_well]:
            raise CommandError(f"Stopped, with an error in: {', '.join(child.name for child in failed)}.")
        self.stdout.write("Job scheduler has stopped.")

    def _listen(self, host: str, port: int) -> socket:
        try:
            return listen(host, port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            busy = error.errno == errno.EADDRINUSE
            hint = f" Choose another port, for instance with PORT={port + 1} or --port {port + 1}." if busy else ""
            raise CommandError(f"Cannot listen on {host}:{port}: {why}.{hint}") from None

    def _greet(self, listening: socket) -> None:
        host, port = listening.getsockname()[:2]
        shown = "localhost" if ip_address(host).is_unspecified else f"[{host}]" if ":" in host else host
        try:
            console = reverse("admin:index")
        except NoReverseMatch:
            console = "/"
        self.stdout.write(self.style.SUCCESS(f"Job scheduler is running: http://{shown}:{port}{console}"))
        self.stdout.write("Log in with a staff account (a lost password: manage.py changepassword NAME). Ctrl-C ends.")
        self.stdout.flush()


def _port(value: str) -> int:
    if not value.isdecimal() or int(value) > 65535:
        raise ArgumentTypeError(f"a port is a number from 0 to 65535, not {value!r}")
    return int(value)


def _heed_signals() -> SimpleQueue[Child | int]:
    """A SimpleQueue, because it alone may be filled from a signal handler that interrupts its own reader."""
    happenings: SimpleQueue[Child | int] = SimpleQueue()
    for each in STOP_SIGNALS:
        if each is signal.SIGHUP and signal.getsignal(each) is signal.SIG_IGN:
            continue  # started with nohup
        signal.signal(each, lambda signum, frame: happenings.put(signum))
    return happenings


def _watch(child: Child, happenings: SimpleQueue[Child | int]) -> None:
    child.wait()
    happenings.put(child)


def _stop(children: list[Child], happenings: SimpleQueue[Child | int]) -> list[Child]:
    """Ask all children to stop and wait for them; return those that had to be killed."""
    began = time.monotonic()
    for child in children:
        child.stop()
    while any(child.alive for child in children):
        left = began + conf.SHUTDOWN_GRACE_SEC + PATIENCE_SEC - time.monotonic()
        try:
            happening = happenings.get(timeout=max(left, 0.0))
        except Empty:
            break
        if happening == signal.SIGINT and time.monotonic() - began > REPEAT_SEC:
            break
    killed = [child for child in children if child.alive]
    for child in killed:
        child.kill()
    for child in killed:
        child.wait()
    return killed


def listen(host: str, port: int) -> socket:
    family = AF_INET6 if ":" in host else AF_INET
    return create_server((host, port), family=family, backlog=1024)


def serve(descriptor: int, *, threads: int) -> None:
    """Serves until SIGTERM; requests under way get a few seconds to end."""
    import waitress

    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    application = get_internal_wsgi_application()
    if settings.DEBUG and "django.contrib.staticfiles" in settings.INSTALLED_APPS:
        application = StaticFilesHandler(application)
    if not settings.DEBUG and not getattr(staticfiles_storage, "is_collected", True):
        log.warning("Static files are served as they lie in the apps: `manage.py collectstatic` makes pages quicker.")
    waitress.serve(
        application,
        sockets=[socket(fileno=descriptor)],
        threads=threads,
        # Which proxy headers to believe is the site's decision (SECURE_PROXY_SSL_HEADER), as under any other server.
        clear_untrusted_proxy_headers=False,
    )


class Child:
    """One of our own management commands, in a session of its own."""

    def __init__(self, name: str, *arguments: str, pass_fds: Sequence[int] = ()) -> None:
        self.name = name
        parent = os.getpid()
        self.process = subprocess.Popen(
            [*command_line(), *arguments],
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=lambda: _die_with(parent),
        )

    def wait(self) -> int:
        return self.process.wait()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def ended_well(self) -> bool:
        """It ended by itself, or by our asking before it was ready to be asked nicely."""
        return self.process.returncode in (0, -signal.SIGTERM)

    def stop(self) -> None:
        if self.alive:
            self.process.terminate()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def command_line() -> list[str]:
    """How this very command line was started: `python manage.py`, or `python -m django`."""
    spec = sys.modules["__main__"].__spec__
    if spec is not None and spec.parent:
        return [sys.executable, "-m", spec.parent]
    return [sys.executable, str(Path(sys.argv[0]).resolve())]


def _die_with(parent: int) -> None:
    """Runs in the child before its program: a parent that is killed outright takes its children along."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` hands down an ignored SIGINT
    die_with(parent, signal.SIGTERM)
