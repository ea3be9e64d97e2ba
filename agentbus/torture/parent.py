"""A process under torture never outlives whoever spawned it."""

from __future__ import annotations

import os
import signal
import threading


def end_with_parent() -> None:
    """Have this process end when whoever spawned it does: their end of our stdin closes with them."""

    def _wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=_wait, daemon=True).start()
