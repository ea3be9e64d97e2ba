"""Runs a number of equal processes: starts them, replaces those that crash, and stops at a crash loop."""

from __future__ import annotations

import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError
from agentbus.processes.crash_loop import BACKOFF, CrashHistory, windows
from agentbus.processes.process import WorkerProcess

if TYPE_CHECKING:
    from agentbus.processes.crash_loop import CrashWindow
    from agentbus.queues.retry import Backoff

# Seconds between two checks of processes whose pipe is closed, and of all processes.
_SOON, _GLANCE = 0.02, 0.5
_CRASHED = 1


@dataclass(frozen=True, slots=True)
class ProcessCrash:
    """A process that crashed: its number from 1, how it ended, and the pause before it is replaced.

    `error` is its last report; `crashes` counts the crashes in this series.
    """

    number: int
    pid: int
    how: str
    error: str | None
    crashes: int
    pause: float


class _Slot:
    def __init__(self, number: int, crashes: CrashHistory) -> None:
        self.number = number
        self.crashes = crashes
        self.process: WorkerProcess | None = None
        self.heard = False
        self.over = False
        self.start_at = 0.0


class Processes:
    """Runs `count` processes that call the function `run`, given as `module:function`, each with a job.

    The job is JSON; it gets `number`, from 1. A process reports through its `ReportPipe`: `ready` once it
    works, and at its end its `totals`, which are summed, and `full` if it is to be replaced. The first
    process starts alone: if it ends before it is ready, no other is started, and its exit code is the
    result. A process that ends with exit code 1 or by a signal has crashed, and is replaced after a pause,
    unless one of the `within` windows is full; with any other exit code its work is done.
    """

    def __init__(
        self,
        run: str,
        job: Mapping[str, Any],
        count: int,
        *,
        label: str = "worker",
        within: Sequence[CrashWindow] | None = None,
        backoff: Backoff = BACKOFF,
        on_crash: Callable[[ProcessCrash], None] | None = None,
    ) -> None:
        self.totals: Counter[str] = Counter()
        self._run = run
        self._job = job
        self._label = label
        self._on_crash = on_crash
        limits = within or windows(longest=backoff.longest)
        self._slots = [
            _Slot(number, CrashHistory(limits, backoff=backoff)) for number in range(1, count + 1)
        ]
        self._ready = False
        self._stopping = False
        self._codes: list[int] = []
        self._given_up: str | None = None

    def run(self) -> int:
        """Run the processes until all have ended, and return the first exit code that is not 0.

        Raises `AgentBusError` if a process crashes in a loop, after the others have stopped. No process is
        left when it returns or raises.
        """
        try:
            while self._turn():
                self._wait()
        finally:
            for slot in self._slots:
                if slot.process is not None:
                    slot.process.end()
        if self._given_up is not None:
            raise AgentBusError(
                self._given_up,
                hint="correct what ends it; a task that a worker loses counts as an attempt",
            )
        return next(filter(None, self._codes), 0)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to all processes, and start no others; a signal handler may call this."""
        self._stopping = True
        for slot in self._slots:
            if slot.process is not None:
                slot.process.signal(number)

    def _turn(self) -> bool:
        """Start, monitor and reap processes; return whether any exists or will be started."""
        for slot in self._slots:
            if slot.process is not None:
                self._look(slot, slot.process)
            elif self._may_start(slot) and time.monotonic() >= slot.start_at:
                self._start(slot)
        if self._stopping:
            return any(slot.process is not None for slot in self._slots)
        return not all(slot.over for slot in self._slots)

    def _may_start(self, slot: _Slot) -> bool:
        return not (slot.over or self._stopping) and (self._ready or slot.number == 1)

    def _start(self, slot: _Slot) -> None:
        job = {**self._job, "number": slot.number}
        slot.process = WorkerProcess(f"{self._label} {slot.number}", self._run, job)
        slot.heard = True
        if self._stopping:
            # The stop signal arrived while the process was being started: pass it on.
            slot.process.signal(signal.SIGTERM)

    def _look(self, slot: _Slot, process: WorkerProcess) -> None:
        slot.heard = process.listen()
        self._ready = self._ready or process.ready
        code = process.ended()
        if code is None:
            return
        lived = time.monotonic() - process.started
        process.close()
        slot.process = None
        self.totals.update(process.said.get("totals", {}))
        if self._stopping:
            # A signal ends a process that has not installed its handlers yet; do not count that as
            # a failure.
            told = code in (-signal.SIGTERM, -signal.SIGINT) and not process.ready
            self._codes.append(0 if told else 128 - code if code < 0 else code)
        elif code == 0 and process.said.get("full"):
            return
        elif self._ready and (code < 0 or code == _CRASHED):
            self._handle_crash(slot, process, code, lived)
        else:
            slot.over = True
            self._codes.append(128 - code if code < 0 else code)
            self._stopping = not self._ready

    def _handle_crash(self, slot: _Slot, process: WorkerProcess, code: int, lived: float) -> None:
        how = f"exit {code}" if code >= 0 else f"killed by {_name(-code)}"
        full = slot.crashes.add(time.monotonic(), lived)
        if full is not None:
            self._given_up = (
                f"process {slot.number} of {len(self._slots)} crashed {full.crashes} times within"
                f" {full.seconds:g} s ({how}); it is not replaced, and the others were stopped"
            )
            self.stop()
            return
        pause = slot.crashes.pause()
        slot.start_at = time.monotonic() + pause
        if self._on_crash is not None:
            count = slot.crashes.count
            self._on_crash(ProcessCrash(slot.number, process.pid, how, process.error, count, pause))

    def _wait(self) -> None:
        """Wait for a report, the end of a process, or the time to start one."""
        now = time.monotonic()
        waits = [_GLANCE]
        heard = []
        for slot in self._slots:
            if slot.process is None:
                waits += [slot.start_at - now] if self._may_start(slot) else []
            elif slot.heard:
                heard.append(slot.process)
            else:
                waits.append(_SOON)
        select.select(heard, [], [], max(0.0, min(waits)))


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
