"""Runs a program for each task: payload on stdin, outcome by exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from agentbus.commands._payload import json_or_text
from agentbus.commands._program_output import ProgramOutput, to_stderr
from agentbus.commands._worktree import GitFailed, without_git
from agentbus.core import envelope
from agentbus.core.context import is_traceparent
from agentbus.core.errors import InvalidPayload
from agentbus.core.process_guard import ProcessGuard
from agentbus.queues.retry import Bury, Retry

if TYPE_CHECKING:
    from agentbus.commands._worktree import Worktree, Worktrees
    from agentbus.queues.delivery import Delivery

    class Watched(Protocol):
        """A program's work: one task, or several together."""

        @property
        def id(self) -> str: ...
        @property
        def time_limit(self) -> float | None: ...
        @property
        def over_at(self) -> float: ...
        @property
        def cancelled(self) -> bool: ...


# EX_DATAERR of sysexits.h: the task itself is invalid, and a retry cannot succeed.
_REFUSED = 65
# Seconds from SIGTERM to SIGKILL.
_LAST_WORDS = 5.0
# Seconds between two checks of a run whether its worker is stopping.
_GLANCE = 0.5
_PIECE = 65536
_CANCELLED = "the task was cancelled"
_FIELDS = ("queue", "group", "attempt", "priority")
# A program that handles a task does not need the secret that signs webhooks, and belongs to the
# task's trace, not to the trace in which its worker was started.
_KEPT_BACK = ("AGENTBUS_WEBHOOK_SECRET", "TRACEPARENT", "TRACESTATE")
VARIABLES = tuple(
    f"AGENTBUS_{name.upper()}"
    for name in ("task_id", "task_ids", "results", *_FIELDS, *envelope.META)
)
# The system limits a variable to 128 KiB.
_LONGEST_RESULTS = 100_000
# Bytes of a result that may say where the work of a task is.
_WHERE = 8192


class ProgramFailed(Retry):
    """A program failed; a dead letter keeps the end of its output in place of a traceback."""

    def __init__(self, message: str, output: str = "", *, after: float | None = None) -> None:
        super().__init__(message, after=after)
        self.program_output = output


class ProgramRefused(ProgramFailed, Bury):
    """A program exited with EX_DATAERR: its task must not be retried."""


class ProgramStopped(ProgramFailed):
    """A program was killed because its worker is stopping; the task is retried at once."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message, output, after=0.0)


class Program:
    """A handler that runs a command for each delivery, in its own process group."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        timeout: float | None,
        limit: int,
        warn: Callable[[str], None],
        worktrees: Worktrees | None = None,
    ) -> None:
        self._command = list(command)
        self._environment = {
            k: v for k, v in environment.items() if k not in (*VARIABLES, *_KEPT_BACK)
        }
        if worktrees is not None:
            self._environment = without_git(self._environment)
            limit = max(0, limit - _WHERE)
        self._timeout = timeout
        self._limit = limit
        self._warn = warn
        # Writes the lines of output; None writes none.
        self.pass_on: Callable[[bytes], None] | None = to_stderr
        self._worktrees = worktrees
        self._until: float | None = None
        self._guard = ProcessGuard()

    @property
    def stopping(self) -> bool:
        """Tell whether new programs must no longer be started."""
        return self._until is not None

    def stop(self, grace: float) -> None:
        """Kill programs that are still running after `grace` seconds."""
        self._until = time.monotonic() + grace

    def close(self) -> None:
        """Kill programs that are still running, and stop guarding them."""
        self._guard.close()

    def __call__(self, delivery: Delivery) -> Any:
        """Run the command for a task and return its output; raises `ProgramFailed`."""
        data = orjson.dumps(delivery.payload) + b"\n"
        fields = {**_fields(delivery), **_results(delivery)}
        if self._worktrees is None:
            return self.run(delivery, data, fields, json_or_text)
        try:
            return self._run_apart(self._worktrees, delivery, data, fields)
        except GitFailed as error:
            raise ProgramFailed(error.message) from None

    def _run_apart(
        self, worktrees: Worktrees, delivery: Delivery, data: bytes, fields: Mapping[str, str]
    ) -> dict[str, Any]:
        """Run the command in the task's worktree; return its output, and where its work is."""
        with worktrees.of(delivery) as worktree:
            if worktree.reused:
                self._warn(f"task {delivery.id} goes on in the worktree {worktree.path}")
            try:
                output = self.run(delivery, data, fields, json_or_text, worktree)
            except ProgramFailed as error:
                branch, path = worktrees.settle(worktree)
                where = f"; its worktree stays: '{path}'" if path else ""
                where += f"; its commits are on '{branch}'" if branch else ""
                raise type(error)(f"{error}{where}", error.program_output) from None
            branch, path = worktrees.settle(worktree)
        if path:
            self._warn(f"task {delivery.id} is done; its worktree stays: {path}")
        return {"output": output, "branch": branch, "worktree": path}

    def run(
        self,
        task: Watched,
        data: bytes,
        fields: Mapping[str, str],
        read: Callable[[str], Any],
        worktree: Worktree | None = None,
    ) -> Any:
        """Run the command with `data` on its stdin, and return its output, converted by `read`."""
        apart: dict[str, Any] = {}
        if worktree is not None:
            # As long as the program lives, no other worker runs one there.
            apart = {"cwd": worktree.cwd, "pass_fds": (worktree.lock,)}
        try:
            process = self._guard.popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environment, **fields},
                start_new_session=True,
                **apart,
            )
        except OSError as error:
            # The arguments or variables are too long: another program published a task with such an
            # envelope.
            kind = ProgramRefused if error.errno == errno.E2BIG else ProgramFailed
            raise kind(f"{self._command[0]!r} could not be started: {error}") from None
        output = ProgramOutput(task.id, self.pass_on)
        with _ProgramRun(process, data, self._limit, output, self._guard.release) as run:
            ended = self._watch(run, task)
        output.close()
        output.show_group(f"{task.id} {' '.join(self._command)}")
        self._judge(process.returncode, output, ended)
        return self._result(task, run, read)

    def _watch(self, run: _ProgramRun, task: Watched) -> str | None:
        """Wait for a run to end; return the reason why it was killed, or None."""
        limit, over = task.time_limit, task.over_at
        if self._timeout is not None and (limit is None or self._timeout < limit):
            limit, over = self._timeout, time.monotonic() + self._timeout
        why: str | None = None
        kill_at = 0.0
        while True:
            now = time.monotonic()
            wait = _GLANCE
            if why is not None:
                if now >= kill_at:
                    run.signal(signal.SIGKILL)
                wait = max(0.001, min(wait, kill_at - now))
            elif now >= over or (self._until is not None and now >= self._until) or task.cancelled:
                if limit is not None and time.monotonic() >= over:
                    why = f"took longer than {limit:g} s"
                else:
                    why = _CANCELLED if task.cancelled else "its worker stops"
                kill_at, wait = now + _LAST_WORDS, 0.0
                run.signal(signal.SIGTERM)
            else:
                wait = min(wait, over - now)
            if run.step(wait):
                return why

    def _judge(self, code: int, output: ProgramOutput, ended: str | None) -> None:
        if ended is not None:
            kind = ProgramStopped if ended == "its worker stops" else ProgramFailed
            raise kind(f"killed: {ended}", output.tail())
        if code == 0:
            return
        last = output.last_line()
        how = f"exit {code}" if code > 0 else f"killed by {_signal(-code)}"
        message = f"{how}: {last}" if last else how
        raise (ProgramRefused if code == _REFUSED else ProgramFailed)(message, output.tail())

    def _result(self, task: Watched, run: _ProgramRun, read: Callable[[str], Any]) -> Any:
        """Return the output as the result; if it cannot be stored, warn and return None."""
        text = bytes(run.stdout).decode("utf-8", "backslashreplace").rstrip("\n")
        if not text.strip():
            return None
        result = read(text)
        try:
            if run.overflowed:
                raise InvalidPayload(f"it printed more than {self._limit} bytes")
            envelope.encode(result, self._limit)
        except InvalidPayload as error:
            self._warn(f"task {task.id} is done, but its result is not kept: {error.message}")
            return None
        return result


class _ProgramRun:
    """A running program: feeds its stdin, collects its output, and detects its end."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        data: bytes,
        limit: int,
        output: ProgramOutput,
        release: Callable[[int], None],
    ) -> None:
        self._output = output
        self._release = release
        self.stdout = bytearray()
        self.overflowed = False
        self._process = process
        self._data = memoryview(data)
        self._limit = limit
        self._ended = False
        self._selector = selectors.DefaultSelector()
        for stream, event in (
            (process.stdin, selectors.EVENT_WRITE),
            (process.stdout, selectors.EVENT_READ),
            (process.stderr, selectors.EVENT_READ),
        ):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, event)
        self._exit = _exit_of(process.pid)
        if self._exit is not None:
            self._selector.register(self._exit, selectors.EVENT_READ)

    def __enter__(self) -> _ProgramRun:
        return self

    def __exit__(self, *_exc: object) -> None:
        # Kill the processes that the program left behind in its group. Until the program is reaped,
        # its process id is not reused.
        self.signal(signal.SIGKILL)
        self._release(self._process.pid)
        self._process.wait()
        self._selector.close()
        if self._exit is not None:
            os.close(self._exit)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def step(self, wait: float) -> bool:
        """Exchange data with the program for up to `wait` seconds; tells whether it has ended."""
        for key, _ in self._selector.select(wait if self._exit is not None else min(wait, 0.02)):
            if key.fileobj is self._exit:
                self._ended = True
            elif key.fileobj is self._process.stdin:
                self._feed()
            else:
                self._hear(key.fileobj)
        if self._exit is None and self._process.poll() is not None:
            self._ended = True
        if self._ended:
            # A child that the program left behind may hold the pipes open: read only what they
            # contain now.
            for stream in (self._process.stdout, self._process.stderr):
                while self._hear(stream):
                    pass
        return self._ended

    def _feed(self) -> None:
        assert self._process.stdin is not None
        try:
            self._data = self._data[os.write(self._process.stdin.fileno(), self._data) :]
        except BlockingIOError:
            return
        except OSError:
            # The program closed its stdin before reading all of it.
            self._data = self._data[:0]
        if not self._data:
            self._selector.unregister(self._process.stdin)
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _hear(self, stream: Any) -> bool:
        try:
            piece = os.read(stream.fileno(), _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            if stream in self._selector.get_map():
                self._selector.unregister(stream)
            return False
        if stream is self._process.stdout:
            room = self._limit - len(self.stdout)
            self.overflowed = self.overflowed or len(piece.rstrip(b"\n")) > room
            self.stdout += piece[: max(0, room)]
        self._output.feed("stdout" if stream is self._process.stdout else "stderr", piece)
        return True


def _exit_of(pid: int) -> int | None:
    """Return a pidfd of a process, if the system supports it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _fields(delivery: Delivery) -> dict[str, str]:
    """Return a task's fields as environment variables, omitting empty fields."""
    # Omit the attribute `task`, which reads the whole envelope.
    plain = (name for name in (*_FIELDS, *envelope.META) if name != "task")
    fields = {name: getattr(delivery, name) for name in plain}
    fields |= {"task_id": delivery.id, "task": delivery.task_name}
    trace = fields["traceparent"]
    named = {"TRACEPARENT": trace} if is_traceparent(trace) else {}
    return named | {
        f"AGENTBUS_{name.upper()}": orjson.dumps(value).decode()
        if isinstance(value, (dict, list))
        else str(value)
        for name, value in fields.items()
        if value is not None and value != []
    }


def _results(delivery: Delivery) -> dict[str, str]:
    """Return the results of the tasks that a task waited for; nothing if they are too long."""
    if not delivery.after:
        return {}
    results = orjson.dumps(delivery.results())
    return {"AGENTBUS_RESULTS": results.decode()} if len(results) <= _LONGEST_RESULTS else {}


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
