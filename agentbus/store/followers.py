"""The connections of a process's followers: all after the first of a project share two."""

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
    """Yield a link for a follower in a thread: its bus's own link for the first one, else a shared link.

    `server` identifies the server within the process.
    """
    if not isinstance(own, PlainLink):
        # An in-process server, or another package's link, has no connections to share.
        yield own
        return
    with _place(server, project, backend, object()) as shared:
        yield own if shared is None else shared.blocking


@contextlib.contextmanager
def async_place(server: str, project: str, backend: Backend, own: AsyncLink) -> Iterator[AsyncLink]:
    """Yield a link for a follower in an event loop; followers of the first bus use that bus's link."""
    if not isinstance(own, AsyncPlainLink):
        yield own
        return
    with _place(server, project, backend, own) as shared:
        yield own if shared is None else shared.awaiting


@contextlib.contextmanager
def _place(
    server: str, project: str, backend: Backend, owner: object
) -> Iterator[SharedLink | None]:
    # Key by process: after a fork, the parent's thread does not exist in the child.
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
    """The followers of one project on one server, and the links that all but the first share."""

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
        """Remove a follower, and close the links that nobody uses any more."""
        if first:
            self._first -= 1
            if not self._first:
                self._owner = None
            return
        self._others -= 1
        if not self._others and self.shared is not None:
            self.shared.close()
            self.shared = None
