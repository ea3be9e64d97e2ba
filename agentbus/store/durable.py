"""Publishes durably: answers a write only after replicas, or the server's disk, have confirmed it.

`WAIT` counts the replicas that have received the last write of the same connection. Each write therefore
also writes a marker, even when the write itself is a no-op, and WAIT follows on the same connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentbus.core.errors import AgentBusError, BackendUnavailable, ConfigError, UsageError
from agentbus.store.resp import NO_REDIS, forgotten, moved
from agentbus.store.steps import LinkDown, Script, ServerReply, Step, Unable, Unconfirmed

if TYPE_CHECKING:
    from agentbus.store.steps import Arg, Op

    Requests = list[Sequence[Arg]]
    Encode = Callable[..., Requests]
    Member = tuple["Confirmed", asyncio.Future[Any]]

    class AwaitedConnection(Protocol):
        """A connection of an event loop."""

        @property
        def closed(self) -> bool:
            """True if it accepts no further request."""

        async def request(self, requests: Requests, within: float) -> list[Any]:
            """Send commands and return their replies."""

        def close(self, why: str) -> None:
            """Close the connection."""


T = TypeVar("T")


KINDS = ("replica", "disk")
MOST_REPLICAS = 100
# Seconds between two counts of the replicas, so that a wait does not include replicas that have
# gone.
_SLICE = 0.5
# Redis checks timeouts ten times a second, so a wait may end this many seconds late.
_LATE = 0.12
# Seconds for which the marker key of a connection is kept.
_MARKED = 300
# Maximum number of writes that share one WAIT.
_AT_ONCE = 500
_STATE = ("INFO", "replication")


@dataclass(frozen=True, slots=True)
class Demand:
    """A demand for confirmation: `kind` is "replica" or "disk"; `least` is a number of replicas."""

    kind: str
    least: int
    mark: str


class Confirmed(Step):
    """A script whose reply comes once its effect is confirmed; `later` is true after another one."""

    __slots__ = ("demand", "later", "script")
    writes = True
    confirms = True

    def __init__(self, script: Script, demand: Demand, later: bool) -> None:
        super().__init__()
        self.script = script
        self.demand = demand
        self.later = later
        self.meanwhile = script.meanwhile

    @property
    def label(self) -> str:
        """The script's name."""
        return self.script.label


def demand(kind: str, least: int, mark: str, *, where: str, able: bool) -> Demand:
    """Return the demand of a publish to a server; `able` is whether the server can confirm.

    Raises `UsageError`, `ConfigError`.
    """
    if kind not in KINDS:
        raise UsageError(f"durable is {kind!r}", hint="use 'replica' or 'disk'")
    if type(least) is not int or not 0 < least <= MOST_REPLICAS:
        raise UsageError(
            f"min_replicas is {least!r}", hint=f"give a number from 1 to {MOST_REPLICAS}"
        )
    if not able:
        raise ConfigError(
            f"{where} cannot confirm that a task was kept, and durable={kind!r} asks for that",
            hint="use the URL of a server with replicas, or publish without durable",
            shell_hint="use the URL of a server with replicas, or publish without --durable",
        )
    return Demand(kind, least, mark)


def confirmed(op: Op[T], wanted: Demand) -> Op[T]:
    """Run an operation and confirm each of its writes before it receives the reply."""
    later = False
    try:
        step = next(op)
        while True:
            if not (isinstance(step, Script) and step.writes and not step.optional):
                try:
                    reply = yield step
                except BaseException as failure:  # noqa: BLE001 (passed on to the operation)
                    step = op.throw(failure)
                else:
                    step = op.send(reply)
                continue
            asked = Confirmed(step, wanted, later)
            try:
                reply = yield asked
            except BaseException as failure:  # noqa: BLE001 (passed on to the operation)
                step.sendings = asked.sendings
                step = op.throw(failure)
            else:
                step.sendings, later = asked.sendings, True
                step = op.send(reply)
    except StopIteration as result:
        value: T = result.value
        return value
    finally:
        op.close()


def confirm_step(
    connection: Any,
    step: Step,
    until: float,
    encode: Encode,
    name: str,
    keep: Callable[[Any], None],
) -> Any:
    """Exchange a step over an unshared connection, and then `keep` or close the connection.

    Raises `LinkDown`, `ServerReply`.
    """
    assert isinstance(step, Confirmed)
    if step.meanwhile is not None:
        step.meanwhile()
    talk = _conversation([step], until, encode, name)
    try:
        requests = next(talk)
        while True:
            try:
                replies = connection.exchange(requests, until)
            except LinkDown as failure:
                requests = talk.throw(failure)
            else:
                requests = talk.send(replies)
    except StopIteration as result:
        (reply,) = result.value
    except BaseException:
        connection.close()
        raise
    if moved([reply]):
        connection.close()
    else:
        keep(connection)
    if isinstance(reply, ServerReply):
        raise reply
    return reply


class Confirmations:
    """Sends the steps of coroutines on a separate connection; simultaneous steps share one wait."""

    def __init__(
        self,
        dial: Callable[[float], Coroutine[Any, Any, AwaitedConnection]],
        encode: Encode,
        name: str,
    ) -> None:
        self._dial = dial
        self._encode = encode
        self._name = name
        self._connection: AwaitedConnection | None = None
        self._waiting: list[Member] = []
        self._sending: asyncio.Task[None] | None = None

    async def execute(self, step: Confirmed) -> Any:
        """Exchange one step with the server."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        member = step, future
        self._waiting.append(member)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        try:
            async with asyncio.timeout(step.within):
                reply = await future
        except TimeoutError:
            sent = member not in self._waiting
            if not sent:
                self._waiting.remove(member)
            raise LinkDown("no answer in time", sent=sent) from None
        if isinstance(reply, ServerReply):
            raise reply
        return reply

    def close(self, why: str) -> None:
        """Close the connection; steps without a reply fail."""
        if self._sending is not None:
            self._sending.cancel()
        if self._connection is not None:
            self._connection.close(why)
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            _fail(future, LinkDown(why, sent=False))

    async def _send(self) -> None:
        try:
            while self._waiting:
                wanted = self._waiting[0][0].demand
                group: list[Member] = []
                rest: list[Member] = []
                for member in self._waiting:
                    fits = len(group) < _AT_ONCE and member[0].demand == wanted
                    (group if fits else rest).append(member)
                self._waiting = rest
                # Skip members whose callers were cancelled.
                group = [member for member in group if not member[1].done()]
                if group:
                    await self._together(group)
        finally:
            self._sending = None

    async def _together(self, group: list[Member]) -> None:
        steps, futures = [step for step, _ in group], [future for _, future in group]
        try:
            replies = await self._exchange(steps, min(step.within for step in steps))
        except (LinkDown, ServerReply, AgentBusError) as failure:
            for future in futures:
                _fail(future, failure)
            return
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        for future, reply in zip(futures, replies, strict=True):
            if not future.done():
                future.set_result(reply)

    async def _exchange(self, steps: list[Confirmed], within: float) -> list[Any]:
        until = time.monotonic() + within
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = await self._dial(within)
        talk = _conversation(steps, until, self._encode, self._name)
        try:
            requests = next(talk)
            while True:
                try:
                    left = max(0.001, until - time.monotonic())
                    replies = await connection.request(requests, left)
                except LinkDown as failure:
                    requests = talk.throw(failure)
                else:
                    requests = talk.send(replies)
        except StopIteration as result:
            step_replies: list[Any] = result.value
        except BaseException:
            connection.close("a write was not confirmed")
            raise
        if moved(step_replies):
            connection.close("another server is in charge")
        return step_replies


def _fail(future: asyncio.Future[Any], failure: Exception) -> None:
    if not future.done():
        # Raise a copy: each caller adds its own traceback.
        future.set_exception(
            type(failure)(str(failure), sent=failure.sent)
            if isinstance(failure, LinkDown) and type(failure) in {LinkDown, Unconfirmed}
            else failure
        )


def _conversation(
    steps: Sequence[Confirmed], until: float, encode: Encode, name: str
) -> Generator[Requests, list[Any], list[Any]]:
    """Yield the requests that send steps and confirm them, and return the steps' replies.

    An error of the server is the reply of its step. Raises `Unconfirmed`; and, before a step is sent,
    `Unable` if the server has too few replicas, or cannot confirm.
    """
    wanted = steps[0].demand
    before: frozenset[bytes] = frozenset()
    probe: Sequence[Arg] = ("WAIT", 0, 1) if wanted.kind == "replica" else ("WAITAOF", 1, 0, 1)
    try:
        state, able = yield [_STATE, probe]
        replicas = _replicas(state)
    except LinkDown as failure:
        # Only the probe was sent, not the steps.
        raise type(failure)(str(failure), sent=False) from None
    if isinstance(able, ServerReply):
        raise _unable(name, wanted, able)
    if wanted.kind == "replica":
        before = replicas
        if len(before) < wanted.least:
            raise _too_few(name, len(before), wanted.least)
    replies: list[Any] = yield [_only(encode(step.script)) for step in steps]
    unknown = [number for number, reply in enumerate(replies) if forgotten([reply])]
    if unknown:
        again = yield [_only(encode(steps[number].script, whole=True)) for number in unknown]
        for number, reply in zip(unknown, again, strict=True):
            replies[number] = reply
    if all(isinstance(reply, ServerReply) for reply in replies):
        return replies
    while True:
        left = until - time.monotonic() - _LATE
        ms = max(1, round(min(left, _SLICE) * 1000))
        wait: Sequence[Arg] = ("WAITAOF", 1, 0, ms)
        if wanted.kind == "replica":
            wait = ("WAIT", max(len(before), wanted.least), ms)
        marked, count, state = yield [("SET", wanted.mark, 1, "EX", _MARKED), wait, _STATE]
        if isinstance(marked, ServerReply):
            raise Unconfirmed(f"the server refused a mark: {marked}", sent=True)
        if isinstance(count, ServerReply):
            raise Unconfirmed(f"the server refused to wait: {count}", sent=True)
        if wanted.kind == "disk":
            # WAITAOF returns two counts: the local disk, and the disks of replicas.
            if not (isinstance(count, list) and count and isinstance(count[0], int)):
                raise _unreadable(count)
            if count[0] >= 1:
                return replies
            said = "the server's disk did not confirm it"
        else:
            if not isinstance(count, int):
                raise _unreadable(count)
            after = _replicas(state)
            # Count replicas that joined or left during the wait: the missing confirmation may be
            # theirs.
            every = len(before | after)
            if count >= max(every, wanted.least):
                return replies
            said = f"{count} of {max(every, wanted.least)} replicas confirmed it"
            before = after
        if time.monotonic() + _LATE * 1.2 >= until:
            raise Unconfirmed(said, sent=True)


def _unreadable(reply: Any) -> LinkDown:
    return LinkDown(f"{NO_REDIS} ({reply!r:.40})", sent=True)


def _only(commands: Requests) -> Sequence[Arg]:
    (command,) = commands
    return command


def _replicas(state: Any) -> frozenset[bytes]:
    """Return the replicas to which a primary sends its writes. Raises `LinkDown` on a replica."""
    if isinstance(state, ServerReply):
        raise state
    if not isinstance(state, bytes):
        raise _unreadable(state)
    lines = state.split(b"\r\n")
    if b"role:master" not in lines:
        raise LinkDown("this server is a replica now", sent=True)
    return frozenset(
        line.partition(b":")[2].partition(b",state=")[0]
        for line in lines
        if line.startswith(b"slave") and b",state=online," in line
    )


def _too_few(name: str, number: int, least: int) -> Unable:
    are = "replica" if number == 1 else "replicas"
    error = BackendUnavailable(
        f"{name} has {number} connected {are}, and durable='replica' needs {least}",
        hint="use the URL of a server with replicas, or publish without durable",
        shell_hint="use the URL of a server with replicas, or publish without --durable",
    )
    return Unable(error)


def _unable(name: str, wanted: Demand, reply: ServerReply) -> Unable:
    said = str(reply)
    if "appendonly" in said:
        hint = "set 'appendonly yes' on the server"
    elif "unknown command" in said.lower():
        hint = "use Redis 7.2 or newer, or any Valkey"
    else:
        hint = "allow the user the commands INFO, SET, WAIT and WAITAOF"
    return Unable(
        ConfigError(f"{name} cannot confirm durable={wanted.kind!r} ({said[:120]})", hint=hint)
    )
