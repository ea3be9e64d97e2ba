"""Consumers whose process ends so many seconds after it took its first event."""

from __future__ import annotations

import os
import threading
from typing import Any

from agentbus.events import Context, consumer
from tests.events.shop import CRASH_AFTER, STREAM


def _declare(seconds: float) -> None:
    @consumer(STREAM, name=f"after-{seconds:g}")
    def crash(_event: Any, context: Context, _session: Any) -> None:
        until = threading.Event()
        for _ in range(round(seconds * 10)):
            context.beat()
            until.wait(0.1)
        os._exit(3)


for _seconds in CRASH_AFTER:
    _declare(_seconds)
