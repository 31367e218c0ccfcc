"""`manage.py runscheduler`: run the web server and a worker, which stop together; or the web server alone."""

from __future__ import annotations

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
from socket import socket
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.servers.basehttp import get_internal_wsgi_application
from django.urls import NoReverseMatch, reverse

from jobs.checks import TAG
from jobs.conf import conf
from jobs.errors import InvalidInput
from jobs.management.base import (
    BAD_INPUT,
    WORKER_NAME_HELP,
    add_recycling_options,
    parse_recycling_options,
    parse_worker_name,
)
from jobs.management.command_child import exit_with_parent
from jobs.management.ports import MAX_PORT, describe_problem, listen

log = logging.getLogger("jobs.web")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXTRA_STOP_SEC = 3  # after SHUTDOWN_GRACE_SEC, for the processes to exit
REPEAT_SEC = 1  # one Ctrl-C can arrive twice: from the terminal and from make


class Command(BaseCommand):
    requires_system_checks = [TAG]
    help = "Run the web server and a worker in one terminal; Ctrl-C stops both gracefully, a second one immediately."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="Address to listen on (default %(default)s).")
        port = "Port to listen on; 0 chooses a free one (default %(default)s)."
        parser.add_argument("--port", type=_parse_port, default=8000, help=port)
        threads = "Number of threads for requests, more than DIRECT_MAX (default %(default)s)."
        parser.add_argument("--threads", type=int, default=8, help=threads)
        worker = parser.add_mutually_exclusive_group()
        worker.add_argument("--concurrency", type=int, help="Number of jobs that the worker runs at once.")
        worker.add_argument("--no-worker", action="store_true", help="Run the web server alone.")
        parser.add_argument("--name", help=WORKER_NAME_HELP)
        add_recycling_options(parser)
        parser.add_argument("--socket", type=int, help=SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        if find_spec("waitress") is None:
            raise CommandError("runscheduler needs waitress: pip install 'django-jobscheduler[standalone]'.")
        try:
            name = parse_worker_name(options["name"])
            recycling = parse_recycling_options(options)
        except InvalidInput as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from None
        worker_options = {"--name": name, "--max-jobs": recycling["max_jobs"], "--max-rss": recycling["max_rss_mib"]}
        for option, value in worker_options.items():
            if value is not None and options["no_worker"]:
                raise CommandError(f"{option}: there is no worker with --no-worker.", returncode=BAD_INPUT)
        if options["threads"] <= conf.DIRECT_MAX:
            reason = f"direct calls may occupy {conf.DIRECT_MAX} (DIRECT_MAX), and probes need one, too"
            raise CommandError(f"--threads={options['threads']} is too few: {reason}.")
        if options["socket"] is not None:
            serve(options["socket"], threads=options["threads"])
            return
        server_socket = self._listen(options["host"], options["port"])
        if options["no_worker"]:
            self._print_address(server_socket)
            serve(server_socket.detach(), threads=options["threads"])
        else:
            worker_options["--concurrency"] = options["concurrency"]
            given = [f"{option}={value}" for option, value in worker_options.items() if value is not None]
            self._run(server_socket, options["threads"], given, restarts_worker=any(recycling.values()))

    def _run(
        self, server_socket: socket, threads: int, worker_options: Sequence[str], *, restarts_worker: bool
    ) -> None:
        events = _queue_signals()
        descriptor = server_socket.fileno()
        web = Child("web", "runscheduler", f"--socket={descriptor}", f"--threads={threads}", pass_fds=[descriptor])
        worker = Child("worker", "worker", *worker_options)
        for child in (web, worker):
            _watch(child, events)
        self._print_address(server_socket)
        server_socket.close()  # the web process has a copy; when it ends, the port is free
        while (first := events.get()) is worker and restarts_worker and worker.wait() == 0:
            worker = Child("worker", "worker", *worker_options)
            _watch(worker, events)
        killed = _stop([web, worker], events)
        if isinstance(first, Child):
            reason = f"The {first.name} process exited unexpectedly (exit code {first.wait()})"
            raise CommandError(f"{reason}; the other was stopped.")
        if killed:
            raise CommandError(f"Killed after the grace period: {', '.join(child.name for child in killed)}.")
        if failed := [child for child in (web, worker) if not child.exited_cleanly]:
            raise CommandError(f"Stopped with an error: {', '.join(child.name for child in failed)}.")
        self.stdout.write("Job scheduler has stopped.")

    def _listen(self, host: str, port: int) -> socket:
        try:
            return listen(host, port)
        except OSError as error:
            raise CommandError(describe_problem(host, port, error, "PORT={port} or --port {port}.")) from None

    def _print_address(self, server_socket: socket) -> None:
        host, port = server_socket.getsockname()[:2]
        address = "localhost" if ip_address(host).is_unspecified else f"[{host}]" if ":" in host else host
        self.stdout.write(self.style.SUCCESS(f"Job scheduler is running: http://{address}:{port}{_find_console()}"))
        reset = "to reset a password: manage.py changepassword NAME"
        self.stdout.write(f"Log in with a staff account ({reset}). Stop with Ctrl-C.")
        self.stdout.flush()


def _find_console() -> str:
    """Return the path of the overview, or of what this site has in its place."""
    for name in ("admin:jobscheduler_jobs_overview", "admin:index"):
        with suppress(NoReverseMatch):
            return reverse(name)
    return "/"


def _parse_port(value: str) -> int:
    if not value.isdecimal() or int(value) > MAX_PORT:
        raise ArgumentTypeError(f"a port is a number from 0 to {MAX_PORT}, not {value!r}")
    return int(value)


def _queue_signals() -> SimpleQueue[Child | int]:
    """Return a queue of the stop signals."""
    events: SimpleQueue[Child | int] = SimpleQueue()  # its `put` is safe in a signal handler that interrupts its reader
    for number in STOP_SIGNALS:
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # started with nohup
        signal.signal(number, lambda signum, frame: events.put(signum))
    return events


def _watch(child: Child, events: SimpleQueue[Child | int]) -> None:
    """Queue a child when it has exited."""

    def wait() -> None:
        child.wait()
        events.put(child)

    threading.Thread(target=wait, daemon=True).start()


def _stop(children: list[Child], events: SimpleQueue[Child | int]) -> list[Child]:
    """Stop all children and wait for them. Return those that had to be killed."""
    started = time.monotonic()
    for child in children:
        child.stop()
    while any(child.is_alive for child in children):
        left = started + conf.SHUTDOWN_GRACE_SEC + EXTRA_STOP_SEC - time.monotonic()
        try:
            event = events.get(timeout=max(left, 0.0))
        except Empty:
            break
        if event == signal.SIGINT and time.monotonic() - started > REPEAT_SEC:
            break
    killed = [child for child in children if child.is_alive]
    for child in killed:
        child.kill()
    for child in killed:
        child.wait()
    return killed


def serve(descriptor: int, *, threads: int) -> None:
    """Serve until SIGTERM; requests in progress get a few seconds to finish."""
    from jobs.management.web_server import serve_application  # waitress is optional

    signal.signal(signal.SIGTERM, _exit_once)
    application = get_internal_wsgi_application()
    if settings.DEBUG and "django.contrib.staticfiles" in settings.INSTALLED_APPS:
        application = StaticFilesHandler(application)
    if not settings.DEBUG and not getattr(staticfiles_storage, "is_collected", True):
        log.warning("static files are not collected; run `manage.py collectstatic` for faster pages")
    serve_application(application, socket(fileno=descriptor), threads=threads)


def _exit_once(signum: int, frame: object) -> None:
    """Exit; ignore further signals: each thread of a killed parent sends one, and they would cut requests off."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class Child:
    """A process with one of our management commands, in a session of its own."""

    def __init__(self, name: str, *arguments: str, pass_fds: Sequence[int] = ()) -> None:
        self.name = name
        parent = os.getpid()
        self.process = subprocess.Popen(
            [*get_command_line(), *arguments],
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=lambda: _prepare_child(parent),
        )

    def wait(self) -> int:
        return self.process.wait()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def exited_cleanly(self) -> bool:
        """Whether it exited with 0, or by our SIGTERM before its handler of that signal was installed."""
        return self.process.returncode in (0, -signal.SIGTERM)

    def stop(self) -> None:
        if self.is_alive:
            self.process.terminate()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def get_command_line() -> list[str]:
    """Return how this process was started: `python manage.py`, or `python -m django`."""
    spec = sys.modules["__main__"].__spec__
    if spec is not None and spec.parent:
        return [sys.executable, "-m", spec.parent]
    return [sys.executable, str(Path(sys.argv[0]).resolve())]


def _prepare_child(parent: int) -> None:
    """Let a child end when its parent is killed; called in the child before its program starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` passes on an ignored SIGINT
    exit_with_parent(parent, signal.SIGTERM)
