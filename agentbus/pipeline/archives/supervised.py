"""The archiver as a job of a supervisor."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from agentbus.core.loggers import emit
from agentbus.core.settings import hand_down
from agentbus.pipeline.archives.archiver import INTERVAL, Archiver
from agentbus.pipeline.source.discovery import ALL
from agentbus.pipeline.spark.session import session

if TYPE_CHECKING:
    from agentbus.core.settings import Settings

TARGET = "agentbus.pipeline.archives.supervised:run"


class Control(Protocol):
    """The part of a supervisor's `JobControl` that the archiver uses."""

    stopped: threading.Event

    def beat(self) -> None: ...

    def wait(self, seconds: float) -> bool: ...


class _Stop(threading.Event):
    """Stops the archiver; while the archiver waits for its next round, it sends heartbeats."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self._control = control

    def is_set(self) -> bool:
        return self._control.stopped.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._control.wait(INTERVAL if timeout is None else timeout)


def run(
    settings: Settings,
    control: Control,
    *,
    path: str,
    interval: float = INTERVAL,
    streams: str = ALL,
    hold: bool = False,
    master: str | None = None,
) -> None:
    """Archive to a path until the supervisor stops it, as `archive PATH --continuous` does."""
    hand_down(AGENTBUS_PROJECT=settings.project)
    if settings.url is not None:
        hand_down(AGENTBUS_URL=settings.url)
    spark = session(master)
    try:
        with Archiver(
            *(spark, settings, path),
            wanted=streams,
            hold=hold,
            # Spark reports progress twice a second for as long as it responds.
            on_progress=lambda _progress: control.beat(),
            warn=lambda text: emit("warning", {"verb": "archive", "error": text}),
        ) as archiver:
            control.beat()
            archiver.run(continuous=True, interval=interval, stop=_Stop(control))
    finally:
        spark.stop()
