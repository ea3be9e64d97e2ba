"""The steps that an operation may ask of a driver.

An operation is a generator: it yields steps and receives each one's reply, in RESP2's raw shape
(bytes, int, list, None). It never knows whether a thread or an event loop runs it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any, Protocol, TypeAlias, TypeVar

    T = TypeVar("T")
    Arg: TypeAlias = str | bytes | int
    Op: TypeAlias = Generator["Step", Any, T]

    class Link(Protocol):
        """A blocking connection to the server, or a pool of them."""

        name: str

        def execute(self, step: Step) -> Any:
            """Exchange one step; raises `LinkDown` or `ServerReply`."""

        def close(self) -> None:
            """Close what is open."""


class Step:
    """One exchange with the server. `within` is how long it may take, in seconds.

    `meanwhile` is called between a request and its reply, in time that would be spent waiting, and again
    if the request is sent again; a driver that cannot do so calls it before. It must not raise.
    """

    __slots__ = ("meanwhile", "sendings", "within")
    writes = False
    # How long the server may hold its answer back, in seconds.
    blocks = 0.0

    def __init__(self) -> None:
        self.within = 5.0
        self.sendings = 0
        self.meanwhile: Callable[[], None] | None = None

    @property
    def label(self) -> str:
        """What an error message calls this exchange."""
        return type(self).__name__.lower()


class Command(Step):
    """A plain Redis command that only reads, or whose repetition changes nothing."""

    __slots__ = ("args",)

    def __init__(self, *args: Arg) -> None:
        super().__init__()
        self.args = args

    @property
    def label(self) -> str:
        """The command's name."""
        return str(self.args[0])


class Batch(Step):
    """Commands sent in one write; the reply is the list of theirs, errors among them."""

    __slots__ = ("commands",)

    def __init__(self, commands: Sequence[tuple[Arg, ...]]) -> None:
        super().__init__()
        self.commands = commands


class Script(Step):
    """A Lua script: one atomic step, whose repetition changes nothing."""

    __slots__ = ("argv", "keys", "script", "writes")

    def __init__(
        self, script: str, keys: Sequence[str], argv: Sequence[Arg] = (), *, writes: bool = False
    ) -> None:
        # As in `Step`, which is not called: a publish makes one of these.
        self.within = 5.0
        self.sendings = 0
        self.meanwhile = None
        self.script = script
        self.keys = keys
        self.argv = argv
        self.writes = writes

    @property
    def label(self) -> str:
        """The script's name."""
        return self.script


def floor() -> Script:
    """Return a step that an older server than Redis 7.0 cannot do, for those that read plainly."""
    return Script("recall", ())


class Wait(Step):
    """Blocks until `stream` has entries past `after`, at most `seconds`; replies with up to `count`."""

    __slots__ = ("after", "count", "seconds", "stream")

    def __init__(self, stream: str, after: str, seconds: float, count: int = 1) -> None:
        super().__init__()
        self.stream = stream
        self.after = after
        self.seconds = seconds
        self.count = count

    @property
    def blocks(self) -> float:  # type: ignore[override]
        """As long as it waits."""
        return self.seconds


class Take(Step):
    """Takes new entries of streams for a consumer, waiting for them at most `seconds` (0: not).

    With a script `first`, that one runs before, in the same exchange; the reply is then a pair, of which
    the second may be an error.
    What it takes is pending from then on. Sent again after a lost answer it takes other entries; those
    of the lost answer are pending still, so the caller looks at what it holds (`sendings` tells).
    """

    __slots__ = ("consumer", "count", "first", "group", "seconds", "streams")
    writes = True

    def __init__(
        self,
        streams: Sequence[str],
        group: str,
        consumer: str,
        count: int,
        seconds: float,
        first: Script | None = None,
    ) -> None:
        super().__init__()
        self.streams = streams
        self.group = group
        self.consumer = consumer
        self.count = count
        self.seconds = seconds
        self.first = first

    @property
    def blocks(self) -> float:  # type: ignore[override]
        """As long as it waits."""
        return self.seconds


class Pause(Step):
    """Waits for so many seconds without asking the server."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class Emit(Step):
    """Hands one value to whoever iterates over the operation."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


class Stopped(BaseException):
    """Thrown into an operation whose reader stopped iterating; it may still finish its books."""


class LinkDown(Exception):
    """The connection failed; `sent` tells whether the request may have reached the server."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class ServerReply(Exception):
    """The server answered with an error; `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


def one_step(step: Step) -> Op[Any]:
    """Return an operation of one step, whose result is the reply."""
    reply = yield step
    return reply
