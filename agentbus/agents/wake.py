"""Waits while an agent is idle, and ends when a message arrives: its client then begins a turn.

Only one process waits for a session at a time. It ends silently when a turn begins, when the
session or its client ends, and after an hour.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentbus.agents import bell
from agentbus.core import client_session
from agentbus.core.settings_check import make_private
from agentbus.store.driver import run
from agentbus.store.steps import Denied, LinkDown, Pause, ServerReply, Wait, is_passing

if TYPE_CHECKING:
    from agentbus.agents.event import Event
    from agentbus.store.steps import Op

# Maximum seconds to wait, as clients let this hook run for an hour; and seconds between two checks
# of the client and the agent's state.
_LONGEST, _RECHECK = 3_590.0, 30.0
# Seconds in which the hook of the turn's end, which runs at the same time, records that the agent
# is idle. If that hook failed, an agent without activity for this many ms counts as idle.
_ENDS, _RESTED = 15.0, 15_000
# Seconds before the server is asked again: at first, at most while a turn goes on, and at most
# while the server is down.
_SOON, _OFTEN, _SELDOM = 0.05, 0.2, 30.0
# Maximum number of signals to end a waiting process, and the seconds between two of them.
_TRIES, _EVERY = 500, 0.02
_DAY = 86_400.0


def wait(event: Event) -> str | None:
    """Wait for messages without a notification; return the line that announces them, or None."""
    try:
        signal.signal(signal.SIGTERM, _end)
        return _wait(event)
    except _Ended:
        return None
    finally:
        # The hook is ending: ignore a late signal.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _wait(event: Event) -> str | None:
    client = ClientProcess()
    held = _hold(event.waiting) if client.lets_wait(event.client.wakes) else None
    if held is None:
        return None
    event.enter()
    try:
        reply = run(event.link, wait_for_notifications(event, client, time.monotonic() + _LONGEST))
    except ServerReply:
        return None
    finally:
        event.link.close()
        os.close(held)
    if reply is None:
        return None
    return bell.wake(reply)


class _Ended(BaseException):
    """A turn has begun. This is not an Exception, so `except Exception` does not catch it."""


def _end(*_: object) -> None:
    raise _Ended


def wait_for_notifications(
    event: Event, client: ClientProcess, until: float
) -> Op[Sequence[Any] | None]:
    """Wait for a reply of `read_notifications` with news; None if waiting is no longer useful.

    Messages are not marked as notified if the client is gone.
    """
    ends: float | None = time.monotonic() + _ENDS
    pause = _SOON
    # The hook of the turn's end may have failed to record that the agent is idle. A client that
    # starts this hook afterwards is idle at once.
    rested = 0 if event.client.wakes == "always" else None
    while (now := time.monotonic()) < until and client.lives():
        try:
            reply: Sequence[Any] = yield event.read_notifications(rested=rested)
            if reply[0] == b"news":
                return reply
            if reply[0] == b"busy":
                if ends is None or rested is not None:
                    return None
                if now >= ends:
                    rested = _RESTED
                    continue
                yield Pause(pause)
                pause = min(2 * pause, _OFTEN)
                continue
            # From here on, an agent that is not idle has begun another turn.
            ends, rested, pause = None, None, _SOON
            inbox = event.scope.keys.inbox(event.settings.agent)
            yield Wait(inbox, reply[1].decode(), min(_RECHECK, until - now))
        except Denied:
            return None
        except (LinkDown, ServerReply) as failure:
            if isinstance(failure, ServerReply) and not is_passing(failure):
                raise
            # The server keeps its messages while it restarts, so try again.
            yield Pause(pause)
            pause = min(2 * pause, _SELDOM)
    return None


class ClientProcess:
    """The client's process, without which no agent reads the messages."""

    def __init__(self) -> None:
        self.pid = client_session.client_process()
        self._began = None if self.pid is None else client_session.start_of(self.pid)

    def lives(self) -> bool:
        """Tell whether the process runs; true if that is unknown."""
        return self.pid is None or client_session.start_of(self.pid) == self._began

    def lets_wait(self, condition: str) -> bool:
        """Tell whether the session goes on while a hook waits, by the condition of its client."""
        if condition != "terminal":
            return condition == "always"
        # Each prompt may end a hook that waits, without the imports of this one.
        from agentbus.agents import claude_session

        return claude_session.goes_on(self.pid)


# -- what waits for a session --


def end(path: str) -> None:
    """End the process that holds a file, if any."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not _lock(file):
            _end_holder(file)
    finally:
        os.close(file)


def _hold(path: str) -> int | None:
    """Lock a file, and end its former holder; None if the former holder does not end in time.

    Raises OSError if the file cannot be written.
    """
    make_private(os.path.dirname(path))
    _prune(os.path.dirname(path))
    for _ in range(_TRIES):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if _lock(file):
            own = f"{os.getpid()}\n{client_session.start_of(os.getpid())}"
            os.ftruncate(file, 0)
            os.pwrite(file, own.encode(), 0)
            return file
        _end_holder(file)
        os.close(file)
        time.sleep(_EVERY)
    return None


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _end_holder(file: int) -> None:
    pid, _, began = os.pread(file, 200, 0).decode("ascii", "replace").partition("\n")
    # Until the process that locked the file has written its own id, the file holds the id of a
    # former process.
    if pid.isdigit() and client_session.start_of(int(pid)) == began:
        try:
            os.kill(int(pid), signal.SIGTERM)
        except OSError:
            return


def _prune(folder: str) -> None:
    """Remove files of sessions that have not waited for a day."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if abs(time.time() - os.stat(path).st_mtime) < _DAY:
                continue
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        if _lock(file):
            os.unlink(path)
        os.close(file)
