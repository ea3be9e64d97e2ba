"""Command lines and programs in forks of a process that has imported all already, which takes longest.

The nightly tier starts a Python for each instead, as users do.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import marshal
import os
import pathlib
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import sqlalchemy

import agentbus
from tests.profiles import NIGHTLY
from tests.servers import ROOT, Shell, program


def new_shell(home: pathlib.Path, environment: dict[str, str]) -> Shell:
    """Return a shell that forks, or in the nightly tier one that starts what it runs."""
    return Shell(home, environment) if NIGHTLY else Forked(home, environment)


# A Python reads these as it starts.
_AT_START = ("PYTHON", "LANG", "LC_")


def _starts_otherwise(environment: dict[str, str]) -> bool:
    """Tell whether a Python would start otherwise in an environment than in that of this process."""
    # The checkout is where a fork finds its modules, too.
    changed = (environment.items() ^ os.environ.items()) - {("PYTHONPATH", str(ROOT))}
    return any(name.startswith(_AT_START) for name, _ in changed)


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
        if _starts_otherwise(environment):
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
        asked.sendall(marshal.dumps(job))
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
    folder = pathlib.Path(tempfile.mkdtemp(prefix="forks-"))
    place = folder / "0"
    (folder / "bin").mkdir()
    for script in (folder / "session", folder / "bin/agentbus"):
        script.write_text(
            _TYPED.format(python=os.path.realpath(sys.executable), folder=folder, program=program())
        )
        script.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forking", str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return str(place), process


# -- what is typed --


def forking_session(words: Iterable[object]) -> list[str]:
    """Return words that start a program in a session of its own, where each `agentbus` is a fork.

    An agent is named after its session, and only what descends from a process can be in its session: so
    each has a process of its own that forks. In the nightly tier they are the program's own words.
    """
    begun = [] if NIGHTLY else [f"{os.path.dirname(_forks())}/session"]
    return [*begun, *map(str, words)]


# As `session` it has a program run in a new session; as `agentbus` a command line, in the session and the
# process group in which it is itself. Then it leaves the group, whose signals reach the command line alone,
# and hands on those that it gets itself. Each command starts it: so it imports next to nothing.
_TYPED = """#!{python} -ISE
import _signal, _socket, marshal, posix, sys
signals = [getattr(_signal, "SIG" + name) for name in "HUP INT QUIT TERM USR1 USR2".split()]
ignored = [number for number in signals if _signal.getsignal(number) == _signal.SIG_IGN]
session = posix.getsid(0) if sys.argv[0].endswith("/agentbus") else 0
asked = _socket.socket(_socket.AF_UNIX)
try:
    asked.connect("{folder}/%d" % session)
    job = dict(words=sys.argv[1:], environment=posix.environ, cwd=posix.getcwd(), ignored=ignored)
    job["group"] = session and posix.getpgrp()
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    asked.sendmsg([b"0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
except OSError:
    # A program in the session has begun another one.
    posix.execv("{program}", ["{program}", *sys.argv[1:]])
asked.sendall(marshal.dumps(job))
def hand_on(number, _):
    try:
        asked.send(bytes([number]))
    except OSError:
        pass
asked.recv(1)
if session:
    posix.setpgid(0, session)
for number in signals:
    if number not in ignored:
        _signal.signal(number, hand_on)
posix.closerange(0, 3)
code = int(asked.recv(16) or 99)
if code < 0:
    if code != -_signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""


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

    def serve(self, *, lasting: bool) -> None:
        """Fork until stdin ends, or until nothing runs any more where that is not lasting."""
        while lasting or self._running:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return
                if key.fileobj is self._listening:
                    self._fork(self._listening.accept()[0])
                elif key.fileobj is self._ended:
                    self._ended.recv(4096)
                    self._reap()
                elif key.data in self._running:
                    self._hand_on(key.fileobj, key.data)

    def close(self) -> None:
        """End all that runs."""
        for pid in self._running:
            _send(pid, signal.SIGKILL)
        os.unlink(self._place)

    def watch(self, pid: int, asked: socket.socket) -> None:
        """Say on a connection how a child has ended, and do to the child what is said there."""
        self._running[pid] = asked
        self._selector.register(asked, selectors.EVENT_READ, pid)

    def _fork(self, asked: socket.socket) -> None:
        _, files, _, _ = socket.recv_fds(asked, 1, 3)
        try:
            with asked.makefile("rb") as sent:
                job = marshal.load(sent)
        except (OSError, EOFError, ValueError, TypeError):
            # Who asked has been killed.
            asked.close()
        else:
            group = job.get("group")
            if not (pid := os.fork()):
                (_host if group == 0 else _become)(job, files, asked)
            if group == 0:
                # The first process of a session answers for itself.
                asked.close()
            else:
                self.watch(pid, asked)
        for file in files:
            os.close(file)

    def _hand_on(self, asked: socket.socket, pid: int) -> None:
        try:
            numbers = asked.recv(16)
        except OSError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            _send(pid, number)
        if not numbers:
            self._selector.unregister(asked)

    def _reap(self) -> None:
        # Of the first process of a session, or when no child is left, nobody is to be told.
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._running:
                    self._tell(*ended)

    def _tell(self, pid: int, status: int) -> None:
        with self._running.pop(pid) as asked:
            # Of a child that was killed, nobody waits.
            with contextlib.suppress(KeyError):
                self._selector.unregister(asked)
            with contextlib.suppress(OSError):
                asked.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def _send(pid: int, number: int) -> None:
    """Send a signal to a command line, or to the group of a program, which leads it."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        os.kill(pid, number)


def _host(job: dict[str, Any], files: Sequence[int], asked: socket.socket) -> NoReturn:
    """Be the first process of a session: run a program in it, and fork for what is typed there."""
    try:
        os.setsid()
        folder = os.path.dirname(sys.argv[1])
        here = _Forks(f"{folder}/{os.getpid()}")
        _heed(job)
        environment = _environment(job)
        environment["PATH"] = f"{folder}/bin:{environment['PATH']}"
        standard = dict(zip(("stdin", "stdout", "stderr"), files, strict=True))
        program = subprocess.Popen(
            job["words"], env=environment, cwd=job["cwd"], process_group=0, **standard
        )
        for file in files:
            os.close(file)
        here.watch(program.pid, asked)
        asked.sendall(b"+")
        here.serve(lasting=False)
        here.close()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(0)


def _environment(job: dict[str, Any]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in job["environment"].items()}


def _heed(job: dict[str, Any]) -> None:
    """Ignore the signals that are ignored where a job was typed, and heed interrupts otherwise."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in job.get("ignored", ()):
        signal.signal(number, signal.SIG_IGN)


def _become(job: dict[str, Any], files: Sequence[int], asked: socket.socket) -> NoReturn:
    """Be a command line."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _heed(job)
        if "group" in job:
            os.setpgid(0, job["group"])
            asked.sendall(b"+")
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 256)
        os.chdir(job["cwd"])
        environment = _environment(job)
        if "group" in job and _starts_otherwise(environment):
            os.execve(program(), [program(), *job["words"]], environment)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
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
        here.serve(lasting=True)
    finally:
        here.close()
        shutil.rmtree(os.path.dirname(sys.argv[1]), ignore_errors=True)
