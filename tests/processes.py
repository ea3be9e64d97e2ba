"""Runs tests in several processes, forked from the one that has collected them all.

    pytest -p tests.processes --processes 8

To collect takes seconds, which processes that are started would each spend again. This process runs no
test itself: so it starts no thread and no server that its forks could not use.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
import types
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest

from tests.spreading import spread

_INTERRUPTED = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run tests in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run all tests in processes, or leave that to pytest."""
    count = session.config.getoption("processes")
    stopped = session.testsfailed and not session.config.option.continue_on_collection_errors
    if not count or stopped or session.config.option.collectonly:
        return None
    _Run(session, count).to_the_end()
    return True


class _Process:
    """A process that runs tests: what it was given, and has not done yet."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self.given: deque[int] = deque()
        self.closing = False

    def give(self, indices: list[int]) -> None:
        self.given.extend(indices)
        self._send(indices)

    def close(self) -> None:
        """Say that nothing more will come."""
        self.closing = True
        self._send([])

    def _send(self, indices: list[int]) -> None:
        # Whether it has died is seen where it is read from.
        with contextlib.suppress(OSError):
            self.connection.send(indices)


class _Run:
    """Hands out tests, and reports what becomes of them as if they ran here."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._hook = session.config.hook
        self._waiting = spread([item.nodeid for item in session.items])
        self._processes: dict[Connection, _Process] = {}
        self._started = 0
        self._count = min(count, len(self._waiting))
        # Not the name of the file before each dot: those of several take turns.
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.showfspath = False
        self._places = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def to_the_end(self) -> None:
        try:
            for _ in range(self._count):
                self._start()
            # One test each before anyone gets a second one.
            for process in self._processes.values():
                process.give(self._waiting.popleft())
            while self._processes:
                for process in self._processes.values():
                    self._top_up(process)
                for ready in wait(list(self._processes)):
                    assert isinstance(ready, Connection)
                    self._hear(self._processes[ready])
        finally:
            for process in [*self._processes.values()]:
                # It ends after the test that it runs.
                process.connection.close()
                os.waitpid(process.pid, 0)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _start(self) -> None:
        self._started += 1
        here, there = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns of the threads in which libraries give back memory, which they start anew.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            there.close()
            self._processes[here] = _Process(pid, here)
        else:
            for other in (here, *self._processes):
                other.close()
            _run_tests(self._session, there, str(self._places / f"p{self._started}"))

    def _top_up(self, process: _Process) -> None:
        """Have a process know which test comes next: what that needs, too, is kept."""
        # What another one leaves behind when it dies goes to a new one.
        while len(process.given) < 2 and not process.closing:
            if self._waiting and not self._stopping:
                process.give(self._waiting.popleft())
            else:
                process.close()

    @property
    def _stopping(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _hear(self, process: _Process) -> None:
        word, *values = _heard(process.connection)
        # A fork must not have the exception of its end in hand.
        if word == "ended":
            self._ended(process)
        elif word == "started":
            item = self._session.items[values[0]]
            self._hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif word == "reported":
            report = self._hook.pytest_report_from_serializable(
                config=self._session.config, data=values[0]
            )
            self._hook.pytest_runtest_logreport(report=report)
        elif word == "warned":
            text, category, file, line, about = values
            warning = warnings.WarningMessage(text, category, file, line)
            self._hook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": warning, **about}
            )
        else:
            assert word == "done", word
            item = self._session.items[process.given.popleft()]
            self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _ended(self, process: _Process) -> None:
        """Report a test whose process has died, and have another one do the rest."""
        del self._processes[process.connection]
        process.connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        if process.given:
            item = self._session.items[process.given.popleft()]
            died = f"The process that ran {item.nodeid} ended with {code}."
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", died, "call")
            self._hook.pytest_runtest_logreport(report=report)
            self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if process.given:
            self._waiting.appendleft([*process.given])
        if self._waiting and not self._stopping:
            self._start()


def _heard(connection: Connection) -> tuple[Any, ...]:
    try:
        words: tuple[Any, ...] = connection.recv()
    except (EOFError, OSError):
        return ("ended",)
    return words


# -- a process --


class _Telling:
    """Tells what is reported of a test."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def tell(self, *words: Any) -> None:
        # Where nobody hears it any more, the run was interrupted.
        with contextlib.suppress(OSError):
            self._connection.send(words)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.tell("reported", data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        place = (warning_message.filename, warning_message.lineno)
        about = {"when": when, "nodeid": nodeid, "location": location}
        # As text: nobody knows whether the warning itself can be sent.
        self.tell("warned", str(warning_message.message), warning_message.category, *place, about)


def _run_tests(session: pytest.Session, connection: Connection, place: str) -> NoReturn:
    code = 1
    try:
        telling = _Telling(session.config, connection)
        _be_alone(session.config, place)
        session.config.pluginmanager.register(telling)
        try:
            _run_each(session, _given(connection), telling)
        finally:
            # After an interrupt, what tests share is still there.
            session._setupstate.teardown_exact(None)
        code = 0
    except (KeyboardInterrupt, pytest.exit.Exception):
        code = _INTERRUPTED
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _be_alone(config: pytest.Config, place: str) -> None:
    """Share no file with the other processes, and say nothing on the terminal."""
    config._tmp_path_factory._basetemp = None  # type: ignore[attr-defined]
    config._tmp_path_factory._given_basetemp = type(config.rootpath)(place)  # type: ignore[attr-defined]
    capture = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    reporter = config.pluginmanager.unregister(name="terminalreporter")
    # What pytest and its plugins write to in the middle of a test: the stacks of one that takes too long.
    config.pluginmanager.register(types.SimpleNamespace(_tw=reporter._tw), "terminalreporter")


def _run_each(session: pytest.Session, indices: Iterator[int], telling: _Telling) -> None:
    index = next(indices, None)
    while index is not None:
        following = next(indices, None)
        item = session.items[index]
        coming = None if following is None else session.items[following]
        telling.tell("started", index)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=coming)
        telling.tell("done")
        index = following


def _given(connection: Connection) -> Iterator[int]:
    """Yield what to run, until there is no more or nobody who would hear of it."""
    gives_way = False
    with contextlib.suppress(EOFError, OSError):
        while indices := connection.recv():
            if len(indices) == 1 and not gives_way:
                # The longest lot decides when all is done, and must not wait for its turn.
                os.nice(5)
                gives_way = True
            yield from indices
