"""Prepares a monitored process: it ends on request, and dies with its parent."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

STOP = b"stop\n"
_PR_SET_PDEATHSIG = 1


def set_apart(descriptor: int) -> int:
    """Hide a descriptor from programs that a handler starts; leave /dev/null in its place."""
    moved = os.dup(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    return moved


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, or has already died."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def watch(control: int, stop: Callable[[], None]) -> None:
    """Stop on request of the parent or a signal; die when the parent's end of the pipe closes."""
    heard, wake = os.pipe()
    for end in (heard, wake):
        os.set_blocking(end, False)
    # The interpreter writes to this descriptor at each signal, even while a handler keeps the main
    # thread busy.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A handler is needed instead of SIG_IGN, or the wakeup descriptor would not be written.
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        while True:
            ready, _, _ = select.select([control, heard], [], [])
            if control in ready and not os.read(control, 64):
                os.kill(os.getpid(), signal.SIGKILL)
            if heard in ready:
                os.read(heard, 64)
            stop()

    threading.Thread(target=listen, name="parent", daemon=True).start()
