"""Runs a command in its own process group, for `hold`: in the foreground if stdin is a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from agentbus.core.errors import AgentBusError
from agentbus.core.process_guard import ProcessGuard

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
# Seconds from the first signal to SIGKILL.
_GRACE = 10.0
# Seconds to wait for the group to end after SIGKILL: a zombie that no process reaps, or a process
# that the kernel cannot end, remains in it.
_LINGERS = 2.0
_GLANCE = 0.02


class CommandGroup:
    """A command and all processes that it starts."""

    def __init__(self) -> None:
        # The first signal that was passed on to the group.
        self.signal: signal.Signals | None = None
        self._id: int | None = None
        self._early: list[int] = []
        self._kill: threading.Timer | None = None
        self._guard = ProcessGuard()

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end, and return its exit code, 128 + N after signal N.

        If the command fails, this returns only when no process is left in the group. Raises
        `AgentBusError` if the command cannot be run.
        """
        # If the parent process ignored SIGCHLD, the exit code could not be read.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            process = self._guard.popen(command, env=environment, process_group=0)
        except FileNotFoundError:
            raise _missing(command[0], "does not exist", _NOT_FOUND) from None
        except (OSError, ValueError) as error:
            raise _missing(command[0], f"cannot be run ({error})", _NOT_EXECUTABLE) from None
        self._id = process.pid
        for number in self._early:
            self.send(number)
        terminal = _Terminal()
        terminal.lend(process.pid)
        try:
            code = _wait(process, terminal)
            if self.signal is not None:
                code = code or 128 + self.signal
            if code:
                self._end()
        finally:
            self._guard.release(process.pid)
            self._guard.close()
            if self._kill is not None:
                self._kill.cancel()
            terminal.take_back()
        return code

    def send(self, number: int) -> None:
        """Send a signal to the group, once it has started; after ten seconds, SIGKILL follows."""
        self.signal = self.signal or signal.Signals(number)
        if self._id is None:
            self._early.append(number)
            return
        if self._kill is None:
            self._kill = threading.Timer(_GRACE, _signal, (self._id, signal.SIGKILL))
            self._kill.daemon = True
            self._kill.start()
        _signal(self._id, number)

    def _end(self) -> None:
        """Wait until the group is empty, terminating processes that the command left behind."""
        assert self._id is not None
        if self._kill is None and _signal(self._id, signal.SIGTERM):
            _signal(self._id, signal.SIGCONT)
        until = time.monotonic() + _GRACE
        while _signal(self._id, 0):
            if time.monotonic() > until + _LINGERS:
                return
            if time.monotonic() > until:
                _signal(self._id, signal.SIGKILL)
            # Poll: the processes that the command left behind are not our children.
            time.sleep(_GLANCE)


class _Terminal:
    """The terminal on stdin, if this process is in its foreground."""

    def __init__(self) -> None:
        self._held = self._is_ours()
        self._before: object = None

    def lend(self, group: int) -> None:
        """Put a process group into the foreground."""
        if self._held:
            # From the background, a process may change the foreground group only if it ignores
            # SIGTTOU.
            self._before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            self._give(group)
            # The group may have been stopped when it tried to read before.
            _signal(group, signal.SIGCONT)

    def take_back(self) -> None:
        """Put this process into the foreground again."""
        if self._held:
            self._give(os.getpgrp())
            signal.signal(signal.SIGTTOU, self._before)  # type: ignore[arg-type]

    def suspended(self, group: int) -> None:
        """Stop this process, as the terminal has stopped the group; then continue both."""
        if self._held:
            self._give(os.getpgrp())
            os.kill(os.getpid(), signal.SIGSTOP)
            if self._is_ours():
                self._give(group)
            _signal(group, signal.SIGCONT)

    def _is_ours(self) -> bool:
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            # Stdin is not a terminal, or the terminal is gone.
            return False

    def _give(self, group: int) -> None:
        try:
            os.tcsetpgrp(0, group)
        except OSError:
            # The terminal or the group is gone.
            self._held = False


def _wait(process: subprocess.Popen[bytes], terminal: _Terminal) -> int:
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            terminal.suspended(process.pid)
            continue
        process.returncode = code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group has a process."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # On macOS the group consists of a zombie alone.
        return False
    return True


def _missing(command: str, why: str, code: int) -> AgentBusError:
    error = AgentBusError(f"the command {command!r} {why}", hint="correct it")
    error.exit_code = code
    return error
