"""The connections of a process's followers: beyond the first bus, all of a project share two."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentbus.store.async_connection import AsyncPlainLink
from agentbus.store.connection import PlainLink
from agentbus.store.shared_link import SharedLink

if TYPE_CHECKING:
    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.connection import Backend
    from agentbus.store.steps import Link

_crowds: dict[tuple[int, str, str], _Crowd] = {}
_guard = threading.Lock()


@contextlib.contextmanager
def place(server: str, project: str, backend: Backend, own: Link) -> Iterator[Link]:
    """Give a follower in a thread a link: its bus's own if it is the first one, else a shared one.

    `server` identifies the server within the process.
    """
    if not isinstance(own, PlainLink):
        # A server within this process, or another package's link, has no connections to save.
        yield own
        return
    with _place(server, project, backend, object()) as shared:
        yield own if shared is None else shared.blocking


@contextlib.contextmanager
def async_place(server: str, project: str, backend: Backend, own: AsyncLink) -> Iterator[AsyncLink]:
    """Give a follower in an event loop a link; the followers of the first bus use that of their bus."""
    if not isinstance(own, AsyncPlainLink):
        yield own
        return
    with _place(server, project, backend, own) as shared:
        yield own if shared is None else shared.awaiting


@contextlib.contextmanager
def _place(
    server: str, project: str, backend: Backend, owner: object
) -> Iterator[SharedLink | None]:
    # After a fork, the thread of the parent is missing.
    key = os.getpid(), server, project
    with _guard:
        crowd = _crowds.setdefault(key, _Crowd())
        first = crowd.enter(owner, backend)
    try:
        yield None if first else crowd.shared
    finally:
        with _guard:
            crowd.leave(first=first)
            if not crowd.followers:
                _crowds.pop(key, None)


class _Crowd:
    """The followers of one project on one server, and what all but the first share."""

    def __init__(self) -> None:
        self.shared: SharedLink | None = None
        self._owner: object = None
        self._first = 0
        self._others = 0

    @property
    def followers(self) -> int:
        """The number of followers."""
        return self._first + self._others

    def enter(self, owner: object, backend: Backend) -> bool:
        """Add a follower, and return whether it uses its owner's link."""
        if self._owner is None or self._owner is owner:
            self._owner = owner
            self._first += 1
            return True
        if self.shared is None:
            self.shared = SharedLink(backend)
        self._others += 1
        return False

    def leave(self, *, first: bool) -> None:
        """Remove a follower, and close what nobody uses any longer."""
        if first:
            self._first -= 1
            if not self._first:
                self._owner = None
            return
        self._others -= 1
        if not self._others and self.shared is not None:
            self.shared.close()
            self.shared = None
