"""What the process that leads the rounds tells a contender, over the contender's stdin."""

from __future__ import annotations

import os
import signal
import threading

END = "end"


class Orders:
    """The round that is on, as it was last told; what came before it is forgotten."""

    def __init__(self, first: str) -> None:
        self._last = first
        self._news = threading.Condition()

    def listen(self) -> None:
        """Follow what is told, in a thread; end with whoever tells it."""
        threading.Thread(target=self._listen, daemon=True).start()

    def hear(self, order: str) -> None:
        """Take what was told last."""
        with self._news:
            self._last = order
            self._news.notify_all()

    def after(self, number: int) -> int | None:
        """Return the number of the round that is on, once it is another one; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._last == END or int(self._last) > number)
            return None if self._last == END else int(self._last)

    def _listen(self) -> None:
        told = b""
        while chunk := os.read(0, 4096):
            told += chunk
            *lines, told = told.split(b"\n")
            for line in lines:
                self.hear(line.decode())
        os.kill(os.getpid(), signal.SIGKILL)
