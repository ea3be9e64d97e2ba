"""Command lines and programs in forks of a process that has imported all already, which takes longest.

The nightly tier starts a Python for each instead, as users do.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pathlib
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import sqlalchemy

import agentbus
from tests.profiles import NIGHTLY
from tests.servers import ROOT, Shell


def new_shell(home: pathlib.Path, environment: dict[str, str]) -> Shell:
    """Return a shell that forks, or in the nightly tier one that starts what it runs."""
    return Shell(home, environment) if NIGHTLY else Forked(home, environment)


# A Python reads these as it starts.
_AT_START = ("PYTHON", "LANG", "LC_")


class Forked(Shell):
    """A shell whose command lines, run to their end, are forked; those that are started are not."""

    def __init__(self, home: pathlib.Path, environment: dict[str, str] | None = None) -> None:
        super().__init__(home, environment)
        # That takes a second, which no test may count.
        _forks()

    def run(
        self,
        *args: str,
        stdin: str | bytes | None = None,
        env: dict[str, str] | None = None,
        cwd: pathlib.Path | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command line to its end."""
        environment = {**self.environment, **(env or {})}
        # The checkout is where a fork finds its modules, too.
        changed = (environment.items() ^ os.environ.items()) - {("PYTHONPATH", str(ROOT))}
        if any(name.startswith(_AT_START) for name, _ in changed):
            return super().run(*args, stdin=stdin, env=env, cwd=cwd, timeout=timeout)
        words = [os.fsdecode(word) for word in args]
        job = {"words": words, "environment": environment, "cwd": str(cwd or self.home)}
        return _run(job, stdin, timeout)

    def python(
        self, *args: str, cwd: pathlib.Path, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a file of Python to its end, to which a warning is an error."""
        job = {"file": args[0], "words": args[1:], "environment": self.environment, "cwd": str(cwd)}
        return _run(job, None, timeout)


def _run(
    job: dict[str, Any], stdin: str | bytes | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Have a fork do a job, and return what it printed and how it ended."""
    asking = f"{json.dumps(job)}\n".encode()
    with (
        tempfile.TemporaryFile() if stdin is not None else open(os.devnull, "rb") as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX) as asked,
    ):
        if stdin is not None:
            given.write(stdin.encode() if isinstance(stdin, str) else stdin)
            given.seek(0)
        asked.settimeout(timeout)
        asked.connect(_forks())
        socket.send_fds(asked, [b"0"], [given.fileno(), out.fileno(), err.fileno()])
        asked.sendall(asking)
        try:
            code = int(asked.recv(16))
        except TimeoutError:
            # The process ends when nobody waits for it any more.
            raise subprocess.TimeoutExpired(job["words"], timeout) from None
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode("utf-8", "surrogateescape"))
    return subprocess.CompletedProcess(job["words"], code, *said)


_starting = threading.Lock()


def _forks() -> str:
    """Return the address of the process that forks for this one."""
    with _starting:
        return _started()[0]


@functools.cache
def _started() -> tuple[str, object]:
    """Start the process that forks: it ends with its stdin, which ends with this process."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="forks-"), "socket")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forking", str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return str(place), process


# -- the process --


class _Forks:
    """Forks for each connection, says on it how the child ended, and kills it if that is hung up."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(place)
        self._listening.listen(100)
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, socket.socket] = {}
        self._ended, self._ending = socket.socketpair()
        for end in (self._ended, self._ending):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._ending.fileno())
        for file in (self._listening, self._ended, 0):
            self._selector.register(file, selectors.EVENT_READ)

    def serve(self) -> None:
        """Fork until stdin ends."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return
                if key.fileobj is self._listening:
                    self._fork(self._listening.accept()[0])
                elif key.fileobj is self._ended:
                    self._ended.recv(4096)
                    self._reap()
                elif key.data in self._running:
                    os.kill(key.data, signal.SIGKILL)
                    self._selector.unregister(key.fileobj)

    def close(self) -> None:
        """End all that runs."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        os.unlink(self._place)
        os.rmdir(os.path.dirname(self._place))

    def _fork(self, asked: socket.socket) -> None:
        _, files, _, _ = socket.recv_fds(asked, 1, 3)
        with asked.makefile() as lines:
            job = json.loads(lines.readline())
        if pid := os.fork():
            for file in files:
                os.close(file)
            self._running[pid] = asked
            self._selector.register(asked, selectors.EVENT_READ, pid)
        else:
            _become(job, files)

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._running.pop(pid) as asked:
                # Of a child that was killed, nobody waits.
                with contextlib.suppress(KeyError):
                    self._selector.unregister(asked)
                with contextlib.suppress(OSError):
                    asked.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def _become(job: dict[str, Any], files: Sequence[int]) -> NoReturn:
    """Be a command line."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 256)
        os.environ.clear()
        os.environ.update(job["environment"])
        time.tzset()
        os.chdir(job["cwd"])
        if "file" in job:
            _run_file(job["file"], job["words"])
        sys.argv = ["agentbus", *job["words"]]
        from agentbus.commands._main import main

        main()
    finally:
        os._exit(99)


def _run_file(file: str, words: Sequence[str]) -> NoReturn:
    """Be a program of Python, to which a warning is an error."""
    sys.argv = [file, *words]
    code = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
        raise
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# Few command lines need these, which take as long to import as all others.
_SELDOM = ("agentbus.pipeline", "agentbus.testing")


def _prepare() -> None:
    """Import what verbs and programs import when they run, and the driver of PostgreSQL."""
    for module in pkgutil.walk_packages(agentbus.__path__, "agentbus."):
        if not module.name.startswith(_SELDOM) and module.name != "agentbus.__main__":
            importlib.import_module(module.name)
    sqlalchemy.create_engine("postgresql+psycopg://")
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    # An interrupt ends whoever runs the tests, and with it this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prepare()
    here = _Forks(sys.argv[1])
    os.write(1, b"ready\n")
    try:
        here.serve()
    finally:
        here.close()
