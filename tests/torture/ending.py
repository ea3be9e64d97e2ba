"""Ends a run, for any reason, without leaving a process behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A second signal within this time is ignored; after it, the cleanup must be stuck.
_TIDYING = 20.0
_DYING = 10.0
_GLANCE = 0.01


@contextlib.contextmanager
def by_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on the first signal, and let the cleanup finish on the next ones.

    Any other error after a signal counts as its consequence.
    """
    heard: list[float] = []

    def end(_number: int, _frame: object) -> None:
        now = time.monotonic()
        if not heard or now - heard[0] > _TIDYING:
            heard.insert(0, now)
            raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    except Exception as error:
        if heard:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def kill_those_with(variable: str, value: str) -> None:
    """Kill every process that was started with this value of a variable, also orphans.

    A signal may come while one is being started, before it is registered; and the JVM of a killed process
    runs on for seconds, and forever if its files are gone.
    """
    until = time.monotonic() + _DYING
    while time.monotonic() < until and (found := with_variable(variable, value) - {os.getpid()}):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_GLANCE)


def with_variable(variable: str, value: str) -> set[int]:
    """Return this user's processes that were started with this value of a variable.

    A server that has overwritten its environment with its title is not found.
    """
    if not pathlib.Path("/proc/self/environ").exists():
        sign = f" {variable}={value} "
        lines = subprocess.check_output(
            ["ps", "-A", "-E", "-ww", "-o", "pid=,command="], env={"PATH": os.defpath}, text=True
        ).splitlines()
        return {int(line.split()[0]) for line in lines if sign in f"{line} "}
    wanted = os.fsencode(f"{variable}={value}")
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found
