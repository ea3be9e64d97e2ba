"""Gives an in-process server its own clock, while other servers keep the machine's.

fakeredis has no hook for this: many of its modules call `time.time()`, but always while they hold their
server's lock. The lock of such a server therefore sets the clock for the thread that holds it, and the name
`time` in these modules refers to a stand-in that reads it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fakeredis import FakeRedis

from agentbus.core.errors import ConfigError
from agentbus.store.memory import server

_guard = threading.Lock()
_users = 0
_changed: list[ModuleType] = []


class _Held(threading.local):
    """The clock of the server whose lock this thread holds, if it has its own clock."""

    now: Callable[[], float] | None = None


_held = _Held()


class _Time:
    """Stands in for the module `time` within fakeredis."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        """Return the time of the server whose lock is held, else the machine's."""
        return time.time() if _held.now is None else _held.now()


class _Lock:
    """A server's lock, which sets the server's clock for the thread that holds it."""

    def __init__(self, lock: threading.Lock, now: Callable[[], float]) -> None:
        self.lock = lock
        self.now: Callable[[], float] | None = now

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self.lock.acquire(blocking, timeout)
        if taken:
            _held.now = self.now
        return taken

    def release(self) -> None:
        _held.now = None
        self.lock.release()

    def locked(self) -> bool:
        return self.lock.locked()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_exc: object) -> None:
        self.release()


class ServerTime:
    """Sets the clock of one in-process server to `now`, until `close`."""

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        """Raise `ConfigError` if the installed fakeredis does not use this clock."""
        self._server = server(name)
        self._lock = _Lock(self._server.lock, now)
        _stand_in()
        self._server.lock = self._lock  # type: ignore[assignment]
        if not self._taken(now):
            self.close()
            raise ConfigError(
                "the installed fakeredis does not use this clock",
                hint="install another version of fakeredis, or test without a fake clock",
            )

    def wake(self) -> None:
        """Wake blocked readers, so that they read the time again."""
        with self._server.lock:
            for database in self._server.dbs.values():
                database.condition.notify_all()

    def close(self) -> None:
        """Restore the machine's clock; it is safe to call this twice."""
        if self._lock.now is None:
            return
        # Some threads may still refer to this lock: make it a plain lock.
        self._lock.now = None
        self._server.lock = self._lock.lock
        _step_back()

    def _taken(self, now: Callable[[], float]) -> bool:
        client = FakeRedis(server=self._server, protocol=2)
        seconds, microseconds = client.time()
        client.close()
        return bool(abs(seconds + microseconds / 1_000_000 - now()) < 0.001)


def _stand_in() -> None:
    global _users  # noqa: PLW0603 (the modules are patched once for all)
    with _guard:
        _users += 1
        if _users > 1:
            return
        stand_in = _Time()
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "fakeredis" and vars(module).get("time") is time:
                vars(module)["time"] = stand_in
                _changed.append(module)


def _step_back() -> None:
    global _users  # noqa: PLW0603 (see above)
    with _guard:
        _users -= 1
        while not _users and _changed:
            vars(_changed.pop())["time"] = time
