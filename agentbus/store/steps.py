"""The steps that an operation yields to a driver.

An operation is a generator: it yields steps and receives their replies as raw RESP2 values (bytes, int,
list, None). It does not know whether a thread or an event loop runs it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from typing import Any, Protocol, TypeAlias, TypeVar

    from agentbus.core.errors import AgentBusError

    T = TypeVar("T")
    Arg: TypeAlias = str | bytes | int
    # A hint, or a function that turns the reason of a failure into a better reason and a hint.
    Advice: TypeAlias = str | Callable[[str], tuple[str, str]]
    Op: TypeAlias = Generator["Step", Any, T]

    class Link(Protocol):
        """A blocking connection to the server, or a pool of them."""

        name: str

        def execute(self, step: Step) -> Any:
            """Exchange one step; raises `LinkDown` or `ServerReply`."""

        def close(self) -> None:
            """Close all connections."""


# Codes of transient errors, after which the command was not executed: a restart, a failover,
# resharding, a busy script.
_PASSING = frozenset(
    ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY")
)
# The plain commands of operations that write, beside FUNCTION LOAD.
_WRITES = frozenset(
    ("DEL", "EXPIRE", "HDEL", "HINCRBY", "HSET", "HSETNX", "SET", "UNLINK", "XADD", "XTRIM")
)
# A blocked read that the server ended (the primary became a replica) is transient too, unless Redis
# before 7.2 reports that the stream was deleted.
_ENDED, _DELETED = "UNBLOCKED", "no longer exists"


class Step:
    """One exchange with the server. `within` is its maximum duration in seconds.

    `meanwhile` is called between a request and its reply, when the caller would only wait, and again if the
    request is resent; some drivers call it before the request. It must not raise.
    """

    __slots__ = ("meanwhile", "sendings", "within")
    writes = False
    # If true, the step is tried only once, and its failure is thrown into the operation unchanged.
    optional = False
    # If true, a link may send it without waiting for the reply, which is then None.
    posted = False
    # Seconds for which the server may block before it answers.
    blocks = 0.0
    # If true, the reply comes only after replicas, or the disk, have confirmed the write.
    confirms = False

    def __init__(self) -> None:
        self.within = 5.0
        self.sendings = 0
        self.meanwhile: Callable[[], None] | None = None

    @property
    def label(self) -> str:
        """The name of this exchange in error messages."""
        return type(self).__name__.lower()


class Command(Step):
    """A plain Redis command that is read-only or idempotent."""

    __slots__ = ("args",)

    def __init__(self, *args: Arg) -> None:
        super().__init__()
        self.args = args

    @property
    def writes(self) -> bool:  # type: ignore[override]
        """True if the command writes."""
        return _writes(self.args)

    @property
    def label(self) -> str:
        """The command's name."""
        return str(self.args[0])


class Batch(Step):
    """Commands that are read-only or idempotent, sent in one write.

    The reply is the list of their replies, including errors; a transient error among them fails the step.
    """

    __slots__ = ("commands",)

    def __init__(self, commands: Sequence[tuple[Arg, ...]]) -> None:
        super().__init__()
        self.commands = commands

    @property
    def writes(self) -> bool:  # type: ignore[override]
        """True if one of the commands writes."""
        return any(map(_writes, self.commands))


class Script(Step):
    """A Lua script: one atomic, idempotent step.

    An `optional` script writes a record on which nothing depends, such as that of a waiting agent. It is
    not retried; an account with read-only access, or a replica, refuses it. The reply of a `posted` script,
    which is always optional, need not be awaited.
    """

    __slots__ = ("argv", "keys", "optional", "posted", "script", "writes")

    def __init__(
        self,
        script: str,
        keys: Sequence[str | bytes],
        argv: Sequence[Arg] = (),
        *,
        writes: bool = False,
        optional: bool = False,
        posted: bool = False,
    ) -> None:
        # Repeat `Step.__init__` here: not calling it saves time in each publish.
        self.within = 5.0
        self.sendings = 0
        self.meanwhile = None
        self.script = script
        self.keys = keys
        self.argv = argv
        self.writes = writes
        self.optional = optional
        self.posted = posted

    @property
    def label(self) -> str:
        """The script's name, except for `floor`, which says nothing about the operation."""
        return self.script if self.keys else "script"


class Once:
    """The slot and token by which the server recognizes a resent request."""

    __slots__ = ("key", "slot", "token")

    def __init__(self, key: str, slot: int, token: str) -> None:
        self.key = key
        self.slot = slot
        self.token = token


class Push(Script):
    """The script `push` with one payload; a link may join several of them.

    `kind` is equal for steps that may be joined. `reserve` returns the slot of a write, and `keys_with` the
    keys with that slot; it is reserved only when needed, because joined steps share one slot. `head` holds
    the arguments between the token and the payload.
    """

    __slots__ = ("_head", "_keys_with", "_once", "_reserve", "kind", "payload")
    script = "push"
    writes = True
    optional = False
    posted = False

    def __init__(
        self,
        kind: object,
        reserve: Callable[[], Once],
        keys_with: Callable[[str], tuple[str, ...]],
        head: tuple[Arg, ...],
        payload: bytes,
    ) -> None:
        self.within = 5.0
        self.sendings = 0
        self.meanwhile = None
        self._reserve = reserve
        self._keys_with = keys_with
        self._once: Once | None = None
        self._head = head
        self.kind = kind
        self.payload = payload

    @property
    def once(self) -> Once:
        """The slot and token of this write."""
        if self._once is None:
            self._once = self._reserve()
        return self._once

    @property
    def keys(self) -> Sequence[str | bytes]:  # type: ignore[override]
        """The keys of the script."""
        return self._keys_with(self.once.key)

    @property
    def argv(self) -> Sequence[Arg]:  # type: ignore[override]
        """The arguments of the script."""
        return (self.once.token, *self._head, self.payload)

    def joined(self, steps: Sequence[Push]) -> Script:
        """Return a script that appends the payloads of all steps, which are otherwise identical."""
        payloads = (step.payload for step in steps)
        argv = (self.once.token, *self._head, *payloads)
        return Script(self.script, self.keys, argv, writes=True)

    def shared(self, reply: Any, number: int) -> list[Any] | None:
        """Return the reply for each joined step; None if they must be sent separately."""
        if reply is None:
            return None
        milliseconds, _, sequence = reply.partition(b"-")
        first = int(sequence)
        return [b"%b-%d" % (milliseconds, n) for n in range(first, first + number)]


def floor() -> Script:
    """Return a step that fails on servers older than Redis 7.0, for operations without scripts."""
    return Script("recall", ())


class Wait(Step):
    """Blocks until `stream` has entries past `after`, for at most `seconds`; returns up to `count`."""

    __slots__ = ("after", "count", "seconds", "stream")

    def __init__(self, stream: str, after: str, seconds: float, count: int = 1) -> None:
        super().__init__()
        self.stream = stream
        self.after = after
        self.seconds = seconds
        self.count = count

    @property
    def blocks(self) -> float:  # type: ignore[override]
        """The number of seconds for which it waits."""
        return self.seconds


class WaitAny(Wait):
    """Blocks until one of several streams has entries past its id, for at most `seconds`.

    `tails` maps streams to ids. The reply has each stream with new entries, and one entry of it.
    """

    __slots__ = ("tails",)

    def __init__(self, tails: Mapping[str, str], seconds: float) -> None:
        super().__init__("", "", seconds)
        self.tails = tails


class Take(Step):
    """Reads new entries of streams for a consumer, waiting at most `seconds` (0: not at all).

    A script `first` runs before the read, in the same exchange; its reply then comes first, and the second
    part of the reply may be an error. The last part is whether the key `watched` exists after the read. The
    entries read become pending. If the step is resent after a lost reply, it reads other entries; those of
    the lost reply remain pending, so the caller must check its pending entries if `sendings` > 1.
    """

    __slots__ = ("consumer", "count", "first", "group", "seconds", "streams", "watched")
    writes = True

    def __init__(
        self,
        streams: Sequence[str],
        group: str,
        consumer: str,
        count: int,
        seconds: float,
        watched: str,
        first: Script | None = None,
    ) -> None:
        super().__init__()
        self.watched = watched
        self.streams = streams
        self.group = group
        self.consumer = consumer
        self.count = count
        self.seconds = seconds
        self.first = first

    @property
    def blocks(self) -> float:  # type: ignore[override]
        """The number of seconds for which it waits."""
        return self.seconds


class Both(Step):
    """One or more scripts, and another script after them, in a single exchange.

    The reply is the list of their replies, of which all but the first may be errors.
    """

    __slots__ = ("first", "second")
    writes = True

    def __init__(self, first: Script | Both, second: Script) -> None:
        super().__init__()
        self.first = first
        self.second = second

    @property
    def label(self) -> str:
        """The first script's name."""
        return self.first.label


class Pause(Step):
    """Waits for `seconds` without a request."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class Emit(Step):
    """Passes one value to the caller that iterates over the operation."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


class Stopped(BaseException):
    """Thrown into an operation when its caller stops iterating; it may still move cursors."""


class LinkDown(Exception):
    """The connection failed; `sent` is true if the request may have reached the server."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Crowded(LinkDown):
    """The server refused the connection because it has too many."""


class Unconfirmed(LinkDown):
    """The server executed the request, but it was not confirmed in time."""


class Unable(LinkDown):
    """The server cannot confirm a write, which was not sent; `error` is the error for the caller."""

    def __init__(self, error: AgentBusError) -> None:
        super().__init__(error.message, sent=False)
        self.error = error


class Denied(LinkDown):
    """The system does not allow the connection; `error` is the error for the caller."""

    def __init__(self, error: AgentBusError) -> None:
        super().__init__(error.message, sent=False)
        self.error = error


class ServerReply(Exception):
    """The server answered with an error; `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


def _writes(args: Sequence[Arg]) -> bool:
    return args[0] in _WRITES or args[1:2] == ("LOAD",)


def is_passing(failure: ServerReply) -> bool:
    """Report whether an error is transient, and the server executed nothing."""
    if failure.code == _ENDED:
        return _DELETED not in str(failure)
    return failure.code in _PASSING


def one_step(step: Step) -> Op[Any]:
    """Return an operation of one step, whose result is the reply."""
    reply = yield step
    return reply
