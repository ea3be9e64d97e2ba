"""Opens the backend that the settings name, and holds the shared state of all operations on it."""

from __future__ import annotations

import os
import time

from agentbus.core.keys import Keys
from agentbus.core.names import CHANNEL_BOUND, MAX_BODY_BYTES, SESSION_VARIABLES, is_plain
from agentbus.core.settings import (
    EXCHANGE_LIMIT,
    socket_path,
    state_directory,
    variable,
)
from agentbus.store.connection import Backend, Target
from agentbus.store.resp import digest
from agentbus.store.steps import Command, LinkDown, Once, Script, ServerReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agentbus.core.client_session import ClientSession
    from agentbus.core.settings import Settings
    from agentbus.store.steps import Arg, Op, Step

EMBEDDED = "the embedded server"
EMBEDDED_ADVICE = (
    "see 'agentbus server status' and its log; 'agentbus server repair' repairs a damaged file"
)
_WITHOUT_END = 2**62
# The random digits of a token, and for how many tokens they are read at a time.
_DIGITS, _TOKENS_AT_ONCE = 16, 64
_LONGEST_SUB = 6


class Intervals:
    """The intervals of workers, in seconds.

    A worker sends a heartbeat every `beat`; it counts as dead after `alive` without one. Its threads wait
    at most `look` before they check for work again. `fetch` is how long it waits for new tasks before it
    confirms an order to pause.
    """

    __slots__ = ("alive", "beat", "fetch", "look")

    def __init__(
        self, *, beat: float = 1.0, alive: float = 3.0, look: float = 1.0, fetch: float = 0.5
    ) -> None:
        self.beat = beat
        self.alive = alive
        self.look = look
        self.fetch = fetch


INTERVALS = Intervals()
# Minimum seconds between two records of the session that uses an agent's name.
ATTENDED = 60.0
# Session names, and their cursors and records, expire after this many seconds without activity.
NAMES_KEPT = 7 * 86_400
# Seconds to wait for workers to confirm an order; longer than the heartbeat timeout.
CONFIRM = 5.0


class Scope:
    """The project and agent of a bus, and the shared state of its operations."""

    def __init__(
        self,
        project: str,
        agent: str,
        *,
        channel_bound: int = CHANNEL_BOUND,
        channel_keep: float | None = None,
        max_body: int = MAX_BODY_BYTES,
        exchange_limit: int = EXCHANGE_LIMIT,
        webhook_secret: str | None = None,
        peers: str = "",
        leases_by_worktree: bool = False,
        leases_by_project: bool = False,
        topics: str = "",
        sub: str = "",
        remote: bool = False,
        intervals: Intervals = INTERVALS,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys = Keys(project)
        self.agent = agent
        self.channel_bound = channel_bound
        self.channel_keep = channel_keep
        self.max_body = max_body
        self.exchange_limit = exchange_limit
        # None where webhooks are off.
        self.webhook_secret = webhook_secret
        self.peers = peers
        self.leases_by_worktree = leases_by_worktree
        self.leases_by_project = leases_by_project
        # The topics that agents follow, or mute, unless they choose others.
        self.topics = topics
        # Name of the acting subagent, '' if none.
        self.sub = sub
        # True if the agent runs elsewhere: nothing of this process describes it.
        self.remote = remote
        # When the session was last recorded, by the monotonic clock.
        self.attended = float("-inf")
        self.intervals = intervals
        self.now = now
        self.monotonic = monotonic
        # Offset of the server's clock from the local clock, in seconds.
        self._ahead = 0.0
        self._begin()

    @property
    def channel_trim(self) -> str:
        """The bound of the channel, and after a space the milliseconds for which messages are kept."""
        return f"{self.channel_bound}" + (
            f" {self.channel_keep * 1000:.0f}" if self.channel_keep is not None else ""
        )

    def note_server_time(self, seconds: float) -> None:
        """Note the server's time from a reply that carries it."""
        self._ahead = seconds - self.now()

    def server_now(self) -> float:
        """Return the server's time by the last reply that carried it; before any, the local time."""
        return self.now() + self._ahead

    def _begin(self) -> None:
        self._process = os.getpid()
        self._client = os.urandom(8).hex()
        self._free: list[int] = []
        # C code advances this iterator, so that two threads never get the same number.
        self._slots = iter(range(1, _WITHOUT_END))
        self._tokens = iter(range(1, _WITHOUT_END))
        self._random = ""

    def once(self) -> Once:
        """Reserve a slot for one write, which may be resent any number of times."""
        if self._process != os.getpid():
            # A forked child must not reuse the parent's tokens.
            self._begin()
        try:
            slot = self._free.pop()
        except IndexError:
            slot = next(self._slots)
        number = next(self._tokens)
        at = number % _TOKENS_AT_ONCE * _DIGITS
        if not at or not self._random:
            self._random = os.urandom(_TOKENS_AT_ONCE * _DIGITS // 2).hex()
        # Others may read and write the slot: with the next token they could answer for the server.
        token = f"{number}.{self._random[at : at + _DIGITS]}"
        return Once(self.keys.once(f"{self._client}.{slot}"), slot, token)

    def token(self) -> str:
        """Return a token that no other request in this project carries."""
        if self._process != os.getpid():
            self._begin()
        return f"{self._client}.{next(self._tokens)}"

    def attendance(self, process: int | None = None, *, posted: bool = False) -> Script:
        """Return the step that records the session of an agent, by default that of this process.

        A script can only be `posted` if the server knows it. The reply is None if the project has not seen
        the agent: merely reading from a project leaves no trace in it.
        """
        keys, agent = self.keys, self.agent
        return Script(
            "record_session",
            (keys.sessions, keys.agents, keys.heard, keys.cursor(agent)),
            (
                self._session(process),
                *(round(ATTENDED * 1000), NAMES_KEPT * 1000, int(self.peers != ""), agent),
            ),
            optional=True,
            posted=posted,
        )

    def attended_last(self) -> tuple[Sequence[Arg], ...]:
        """Return the commands that read when this process's session was last recorded.

        The last command checks whether the server knows the script that records it.
        """
        last = "ZSCORE", self.keys.sessions, self._session()
        return ("TIME",), last, ("SCRIPT", "EXISTS", digest("record_session"))

    def is_recent(self, replies: Sequence[Any]) -> bool:
        """Return whether the replies show a record so recent that it need not be repeated."""
        try:
            (seconds, micros), last = replies[:2]
            at = int(seconds) * 1000 + int(micros) // 1000
            return at - ATTENDED * 1000 < float(last) <= at
        except (TypeError, ValueError):
            # The session was never recorded, or the server did not answer with its time.
            return False

    def _session(self, process: int | None = None) -> str:
        return f"{self.agent}\n{os.uname().nodename}\n{process or _session_number()}"

    def attend(self) -> Op[None]:
        """Record the session.

        Failures are ignored, because only a warning of `doctor` depends on the record.
        """
        self.attended = self.monotonic()
        try:
            yield self.attendance()
        except (LinkDown, ServerReply):
            return

    def mark(self) -> str:
        """Return the marker key that this client writes to have its earlier writes confirmed."""
        return self.keys.once(f"{self._client}.mark")

    def free_slot(self, once: Once, step: Step) -> None:
        """Free the slot of a write that was sent once and answered.

        The slot of a resent write is never reused: its first copy may still arrive.
        """
        if step.sendings == 1:
            self._free.append(once.slot)


def server_time(scope: Scope) -> Op[float]:
    """Ask the server for its time in unix seconds, and note it."""
    seconds, microseconds = yield Command("TIME")
    now = int(seconds) + int(microseconds) / 1_000_000
    scope.note_server_time(now)
    return now


def enter(settings: Settings) -> tuple[Backend, Scope]:
    """Return the backend that the settings name (by default the embedded server), and its scope."""
    project = settings.project
    if settings.url is None:
        chosen = Backend(EMBEDDED, embedded, revive=_start)
        chosen.advice = embedded_advice
    else:
        from agentbus.store.schemes import backend

        chosen = backend(settings.url, project)
    chosen.client = f"agentbus:{_printable(settings.agent)}"
    chosen.debug = settings.log_level == "debug"
    if chosen.wraps and not project.startswith("{"):
        project = f"{{{project}}}"
    return chosen, Scope(
        project,
        settings.agent,
        max_body=settings.max_body,
        exchange_limit=settings.exchange_limit,
        channel_bound=settings.channel_bound,
        channel_keep=settings.channel_keep,
        webhook_secret=settings.webhook_secret if settings.webhooks else None,
        peers=settings.peers,
        leases_by_worktree=settings.lease_scope == "worktree",
        leases_by_project=settings.lease_scope == "project",
        topics=settings.hook_topics,
        sub="" if settings.remote else _subagent(),
        remote=settings.remote,
    )


def embedded_advice(said: str) -> tuple[str, str]:
    """Return why the embedded server does not answer, such as a full disk, and a remedy."""
    from agentbus.store.embedded import disk, launch

    trouble = disk.trouble(launch.log_path())
    return (said, EMBEDDED_ADVICE) if trouble is None else (trouble, disk.REMEDY)


def embedded(_within: float) -> Target:
    """Return the embedded server's address."""
    return Target(path=socket_path(), own=True)


def client_session() -> ClientSession | None:
    """Return the session of a coding agent's client that this process belongs to."""
    from agentbus.core.client_session import find, folder_in

    environment = {name: variable(name) or "" for name in SESSION_VARIABLES}
    return find(environment, folder_in(state_directory()))


def _session_number() -> int:
    """Return the process id that identifies a session: a client's, or that of the POSIX session."""
    # Clients may run each command in a new POSIX session, so prefer the client's session.
    if any(map(variable, SESSION_VARIABLES)) or _has_clients():
        session = client_session()
        if session is not None and session.pid is not None:
            return session.pid
    return os.getsid(0)


def _subagent() -> str:
    """Return the subagent for which a client has started this process, if the client names it."""
    subagent = variable("AGENTBUS_SUB") or ""
    named = {name: variable(name) or "" for name in (*SESSION_VARIABLES, "GEMINI_CLI")}
    if not subagent and any(named.values()):
        from agentbus.core import client_session

        folder = client_session.folder_in(state_directory())
        return client_session.subagent(named, folder)
    return subagent[:_LONGEST_SUB] if is_plain(subagent) else ""


def _has_clients() -> bool:
    """Return whether hooks have written any session files, so that a client may be an ancestor process."""
    try:
        return bool(os.listdir(f"{state_directory()}/sessions"))
    except OSError:
        return False


def _printable(name: str) -> str:
    # A connection's name may contain only printable ASCII without spaces.
    if name.isascii() and " " not in name and "%" not in name:
        return name
    return "".join(
        chr(byte) if 32 < byte < 127 and byte != 37 else f"%{byte:02X}" for byte in name.encode()
    )


def _start(within: float) -> None:
    from agentbus.store.embedded.launch import ensure

    ensure(within)
