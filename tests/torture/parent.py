"""Keeps processes under torture from outliving the process that started them."""

from __future__ import annotations

import os
import signal
import threading


def end_with_parent() -> None:
    """End this process when its parent ends: the parent's end of our stdin closes then."""

    def _wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=_wait, daemon=True).start()
