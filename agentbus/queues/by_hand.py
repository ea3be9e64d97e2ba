"""Tasks held by hand: by an agent rather than a process, until a visibility ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agentbus.core import names
from agentbus.core.errors import Refused, StaleToken, UsageError
from agentbus.core.stream import is_number, text
from agentbus.queues.delivery import AnyDelivery, AsyncDelivery, Delivery
from agentbus.queues.ids import BY_HAND, STREAMS, task_id
from agentbus.queues.results import Address
from agentbus.store.failures import or_empty
from agentbus.store.scan import hash_fields
from agentbus.store.steps import Batch, Command, one_step
from agentbus.store.verb import verb

if TYPE_CHECKING:
    from agentbus.queues.consumer import QueueConsumer
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Default seconds for which an agent holds a task; agents think for minutes.
VISIBILITY = 1800.0
_LONGEST = 7 * 86_400.0
# Maximum digits of a 64-bit token.
_DIGITS = 19
# Maximum number of held tasks to list, and to examine per request.
_MOST, _AT_ONCE = 10_000, 250
# Reply that stands for a cancelled task.
_CANCELLED = b""


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that the agent `agent_id` holds by hand until the unix time `until`.

    After that, any consumer of the group may take it.
    """

    id: str
    agent_id: str
    queue: str
    group: str
    until: float
    token: int
    _priority: str = field(repr=False, compare=False)
    _entry: str = field(repr=False, compare=False)

    @property
    def place(self) -> tuple[str, str]:
        """Its stream, named by priority, and its entry there."""
        return self._priority, self._entry

    def held_until(self, until: float) -> HeldTask:
        """Return the same task with a different end."""
        named = self.id, self.agent_id, self.queue, self.group
        return HeldTask(*named, until, self.token, *self.place)


@dataclass(frozen=True, slots=True)
class SettledTask:
    """A task that was settled by hand.

    `state` is `done`, `retrying` (until the unix time `due`), `dead`, or `cancelled` if the task had been
    cancelled. `repeated` is true if an earlier call with this token had already settled it in the same way.
    """

    id: str
    queue: str
    group: str
    state: str
    attempt: int
    due: float | None
    repeated: bool


class Holder(Protocol):
    """The consumer of a task held by hand."""

    token: str | None
    until: float


class AnyTakenTask(AnyDelivery):
    """The common part of blocking and asynchronous tasks held by hand."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """The token by which any process can settle the task; it grows with each take."""
        holder: Any = self._consumer
        return int(holder.token)

    @property
    def until(self) -> float:
        """The unix time at which its visibility ends."""
        holder: Any = self._consumer
        end: float = holder.until
        return end

    @verb
    def renew(self, visibility: float = VISIBILITY) -> Op[float]:
        """Hold the task until `visibility` seconds from now, and return that unix time.

        Raises `StaleToken` if another consumer has the task, `Refused` if it was cancelled.
        """
        return extend(
            self._consumer, self.id, self._taken.priority, self._taken.entry_id, visibility
        )


class TakenTask(AnyTakenTask, Delivery):
    """A task that an agent holds by hand: a `Delivery` with a `token`, held `until` a unix time.

    The task is not bound to this process: with the token, any other process can call `bus.settle` and
    `bus.renew`.
    """

    __slots__ = ()


class AsyncTakenTask(AnyTakenTask, AsyncDelivery):
    """A task that an agent holds by hand, in a coroutine: like `TakenTask`, but its methods are awaited."""

    __slots__ = ()


def seconds(visibility: object) -> float:
    """Check a visibility in seconds, and return it."""
    sound = isinstance(visibility, (int, float)) and not isinstance(visibility, bool)
    if not sound or not 0 < visibility <= _LONGEST:  # type: ignore[operator]
        raise UsageError(
            f"the visibility is {visibility!r}", hint="give seconds, more than 0 and at most 7 days"
        )
    return float(visibility)  # type: ignore[arg-type]


def checked(token: object) -> str:
    """Check a token, given as a number or as text, and return it as text."""
    number = str(token)
    if isinstance(token, bool) or not _is_token(number):
        raise UsageError(
            f"{number[:60]!a} is not a token", hint="give the one that 'take' returned"
        )
    return number


def extend(
    consumer: QueueConsumer, name: str, priority: str, entry: bytes, visibility: float
) -> Op[float]:
    """Hold a task by hand until `visibility` seconds from now, and return that unix time.

    A consumer without a token gets one. Raises `StaleToken`, and `Refused` if the task was cancelled.
    """
    scope, holder = consumer.scope, consumer_token(consumer)
    keys = (
        *(consumer.streams[priority], consumer.attempts(priority), consumer.retries(priority)),
        *(scope.keys.taken_fence, scope.keys.taken, consumer.cancelled),
    )
    place = task_id(text(entry), consumer.queue, priority)
    agent = consumer.consumer.removeprefix(BY_HAND)
    reply = yield consumer._script(
        *("set_visibility", keys, entry, round(seconds(visibility) * 1000), place, name, agent),
        *(consumer.queue, priority),
    )
    if not reply:
        raise StaleToken(
            f"the token {holder.token} of the task {name!r} is stale", hint="take it again"
        )
    if reply[0] == _CANCELLED:
        by = text((yield Command("HGET", consumer.cancelled, place)) or b"").rpartition(" @ ")[0]
        raise Refused(
            f"the task {name!r} was cancelled" + (f" by {by}" if by else ""),
            hint=f"stop working on it, and settle it with bus.settle({name!r}, token, 'retry')",
            shell_hint=f"stop working on it, and say so with 'agentbus task retry {name}'",
        )
    holder.token, holder.until = text(reply[0]), int(reply[1]) / 1000
    return holder.until


def consumer_token(consumer: Any) -> Holder:
    """Return a consumer as the holder of one task."""
    holder: Holder = consumer
    return holder


def held_task(scope: Scope, given: str, token: str, group: str) -> Op[HeldTask | None]:
    """Return the record of a task taken by hand with this token; None if there is none."""
    Address(given)
    field = f"{given}\n{names.name('group', group)}\n{token}"
    (record,) = yield Batch([("HGET", scope.keys.taken, field)])
    return _decoded(field, record) if isinstance(record, bytes) else None


def all_held(scope: Scope) -> Op[list[HeldTask]]:
    """Return the tasks that agents hold by hand, by agent and end; at most 10,000."""
    stored = yield from or_empty(hash_fields(scope.keys.taken, _MOST), {})
    known = [_decoded(text(field), value) for field, value in stored.items()]
    asked = [task for task in known if task is not None]
    held_tasks = []
    for at in range(0, len(asked), _AT_ONCE):
        page = asked[at : at + _AT_ONCE]
        for task, still in zip(page, (yield from still_held(scope, page)), strict=True):
            if still:
                held_tasks.append(task)
    return sorted(held_tasks, key=lambda task: (task.agent_id, task.until, task.id))


def still_held(scope: Scope, tasks: list[HeldTask]) -> Op[list[bool]]:
    """Return for each task whether it is still held with its token."""
    keys = scope.keys
    commands: list[tuple[Any, ...]] = []
    for task in tasks:
        priority, entry = task.place
        stream = keys.queue(task.queue, priority)
        commands.append(("HGET", keys.attempts(task.queue, task.group, priority), entry))
        commands.append(("XPENDING", stream, task.group, entry, entry, 1))
    replies = (yield Batch(commands)) if commands else []
    return [
        token_of(replies[2 * at]) == str(task.token)
        and isinstance(pending := replies[2 * at + 1], list)
        and bool(pending)
        and text(pending[0][1]) == BY_HAND + task.agent_id
        for at, task in enumerate(tasks)
    ]


def token_of(record: Any) -> str | None:
    """Return the token in the record of a task's attempts; None if the task is not held by hand."""
    if not isinstance(record, bytes):
        return None
    number, _, mark = text(record).partition(" ")
    kind, colon, token = mark.partition(":")
    return token if is_number(number) and colon and kind + colon == BY_HAND else None


def forget(scope: Scope, name: str, group: str, token: str) -> Op[None]:
    """Delete the record of a task that is no longer held with this token."""
    yield Batch([("HDEL", scope.keys.taken, f"{name}\n{group}\n{token}")])


def tidy(scope: Scope) -> Op[None]:
    """Delete the records of tasks that are no longer held by hand."""
    cursor = "0"
    while True:
        page = Command("HSCAN", scope.keys.taken, cursor, "COUNT", _AT_ONCE)
        onwards, flat = yield from or_empty(one_step(page), [b"0", []])
        known = {flat[i]: _decoded(text(flat[i]), flat[i + 1]) for i in range(0, len(flat), 2)}
        sound = [task for task in known.values() if task is not None]
        still = {
            task
            for task, holds in zip(sound, (yield from still_held(scope, sound)), strict=True)
            if holds
        }
        gone = [field for field, task in known.items() if task not in still]
        if gone:
            yield Command("HDEL", scope.keys.taken, *gone)
        cursor = text(onwards)
        if cursor == "0":
            return


def _decoded(field: str, value: bytes) -> HeldTask | None:
    """Return a decoded record; None if it is malformed."""
    named, parts = field.split("\n"), text(value).split("\n")
    if len(named) != 3 or len(parts) != 5 or parts[2] not in STREAMS:
        return None
    if not (is_number(parts[4]) and _is_token(named[2])):
        return None
    (name, group, token), (agent, queue, priority, entry, until) = named, parts
    return HeldTask(name, agent, queue, group, int(until) / 1000, int(token), priority, entry)


def _is_token(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS and digits[0] != "0"
