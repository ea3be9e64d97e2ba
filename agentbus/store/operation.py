"""What an operation may ask of a driver, and the driver that blocks.

An operation is a generator: it yields steps and is sent each one's reply, in RESP2's raw shape
(bytes, int, list, None). It never learns whether a thread or an event loop runs it.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import Any, Protocol, TypeAlias, TypeVar

    from agentbus.core.errors import AgentBusError

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


# Not executed, and likely to pass: a restart, a failover, a resharding, a script in the way.
_PASSING = frozenset(
    ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY")
)
# By these a server refuses a write before it looks whether it has done it already.
_UNSEEN = frozenset(("OOM", "MISCONF", "NOREPLICAS"))
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


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


class Run(Step):
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


def floor() -> Run:
    """Return a step that an older server than Redis 7.0 cannot do, for those that read plainly."""
    return Run("recall", ())


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
        first: Run | None = None,
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


def attempt(
    op: Op[T],
    *,
    where: str,
    deadline: float,
    patience: float | Callable[[], float] | None = None,
    answered: bool = False,
    advice: str | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    meanwhile: Callable[[], None] | None = None,
) -> Op[T]:
    """Wrap `op` so that what fails for a reason that may pass is tried again, within a deadline.

    `deadline` is in seconds and counts while the server does not answer. Once it has answered (`answered`:
    before), what is left of `patience` (seconds from the start; or a function that tells how many are
    left) may replace it: a verb that waits for an hour outlives a restart. `advice` is what to do where
    the server does not serve. `meanwhile` is what there is to do while the first answer is on its way.
    """
    began = monotonic()

    def allowed(since: float) -> float:
        if not answered or patience is None:
            return deadline
        if callable(patience):
            return monotonic() + patience() - since
        return max(deadline, began + patience - since)

    try:
        step = next(op)
        step.meanwhile = step.meanwhile or meanwhile
        while True:
            started = monotonic()
            pause = _FIRST_PAUSE
            maybe_done = step.sendings > 0
            while True:
                left = started + allowed(started) - monotonic()
                # Leave room for a second try on a new connection: this one may be half-open.
                step.within = max(left * 0.6, 0.2) if step.sendings == 0 else max(left, 0.2)
                step.within = min(step.within, deadline)
                step.sendings += 1
                try:
                    reply = yield step
                except (LinkDown, ServerReply) as failure:
                    if isinstance(failure, LinkDown):
                        maybe_done = maybe_done or failure.sent
                    elif failure.code not in _PASSING and not (
                        # The first copy may have been done: that can be told only when there is room.
                        step.writes and maybe_done and failure.code in _UNSEEN
                    ):
                        step = op.throw(_refused(failure, step, where))
                        break
                    left = started + allowed(started) - monotonic()
                    if left <= 0:
                        step = op.throw(
                            _given_up(failure, step, where, allowed(started), maybe_done, advice)
                        )
                        break
                    yield Pause(min(pause, left))
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    if isinstance(step, (Wait, Take)):
                        # The time it was to block may be over; the operation looks again.
                        step.seconds = min(step.seconds, 0.05)
                except Stopped as stop:
                    step = op.throw(stop)
                    break
                else:
                    answered = answered or not isinstance(step, Emit)
                    step = op.send(reply)
                    break
    except StopIteration as result:
        value: T = result.value
        return value
    finally:
        op.close()


def _refused(*failed: Any) -> AgentBusError:
    from agentbus.store.failures import refused

    return refused(*failed)


def _given_up(*failed: Any) -> AgentBusError:
    from agentbus.store.failures import given_up

    return given_up(*failed)


def run(link: Link, op: Op[T]) -> T:
    """Run an operation to its end, blocking, and return its result."""
    execute, send = link.execute, op.send
    try:
        step = next(op)
        while True:
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                step = send(None)
                continue
            try:
                reply = execute(step)
            except (LinkDown, ServerReply) as failure:
                step = op.throw(failure)
            else:
                step = send(reply)
    except StopIteration as result:
        value: T = result.value
        return value


def at_once(link: Link, op: Op[T], deadline: float, again: Callable[[Op[T]], Op[T]]) -> T:
    """Run an operation; only from its first failure on does `again` wrap it, to have it tried again.

    Nearly nothing ever fails, and what waits for failures costs a tenth of a publish.
    """
    execute, send = link.execute, op.send
    try:
        step = next(op)
        while not isinstance(step, Pause):
            step.within = deadline * 0.6
            step.sendings = 1
            try:
                reply = execute(step)
            except (LinkDown, ServerReply) as failure:
                if not (isinstance(failure, LinkDown) and failure.sent):
                    # It did not get there, or was not executed.
                    step.sendings = 0
                break
            step = send(reply)
    except StopIteration as result:
        value: T = result.value
        return value
    return run(link, again(_from(op, step)))


def _from(op: Op[T], step: Step) -> Op[T]:
    # The step is sent anew: an error is then met again, where it is understood.
    try:
        while True:
            try:
                reply = yield step
            except BaseException as failure:  # noqa: BLE001 (all of them are the operation's)
                step = op.throw(failure)
            else:
                step = op.send(reply)
    except StopIteration as result:
        value: T = result.value
        return value
    finally:
        op.close()


def iterate(link: Link, op: Op[Any]) -> Iterator[Any]:
    """Run an operation, blocking, and yield what it emits."""
    try:
        step = next(op)
        while True:
            if isinstance(step, Emit):
                try:
                    yield step.value
                except GeneratorExit:
                    # Let it keep its books (a cursor moves past what was consumed), then end.
                    step = op.throw(Stopped())
                else:
                    step = op.send(None)
            else:
                step = _exchange(link, op, step)
    except (StopIteration, Stopped):
        return


def _exchange(link: Link, op: Generator[Step, Any, Any], step: Step) -> Step:
    if isinstance(step, Pause):
        time.sleep(step.seconds)
        return op.send(None)
    try:
        reply = link.execute(step)
    except (LinkDown, ServerReply) as failure:
        return op.throw(failure)
    return op.send(reply)
