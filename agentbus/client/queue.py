"""A queue, with methods to publish and manage tasks, on a `Bus` or an `AsyncBus`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from agentbus.admin import entries, pause, stats
from agentbus.admin.delete import delete
from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.queues import dependencies, ids, publish, rerun, results
from agentbus.queues.dead_letters import DeadLetters
from agentbus.queues.publish import trims
from agentbus.queues.task import Task
from agentbus.store.scope import CONFIRM
from agentbus.store.verb import Awaiting, BusT_co, Emits, OnBus, Patient, stream_verb, verb
from agentbus.workers.fetch import fetch
from agentbus.workers.registry import or_no_worker

if TYPE_CHECKING:
    from agentbus.admin.delete import Deleted
    from agentbus.admin.pause import Order
    from agentbus.admin.survey import Group
    from agentbus.core.envelope import Envelope
    from agentbus.queues.dead_letters import Letter
    from agentbus.queues.delivery import AsyncDelivery, Delivery
    from agentbus.queues.publish import BatchOptions
    from agentbus.queues.rerun import Replayed
    from agentbus.queues.state import Entry
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.store.verb import PerBus


class Queue(OnBus[BusT_co]):
    """A queue of tasks. On an `AsyncBus` its methods are awaited.

    The queue's policy supplies missing arguments. In annotations, `Queue` is a queue on a `Bus`, and
    `Queue[AsyncBus]` one on an `AsyncBus`.
    """

    def __init__(self, bus: Any, name: str, *, bound: int | None = None) -> None:
        self._bus = bus
        self._scope: Scope = bus.scope
        # Look these up once, because each publish needs them.
        self._run, self._iterate = bus._run, bus._iterate
        self._sharded = bus._sharded
        self.name = names.name("queue", name)
        self.policy = bus.policy(name)
        if bound is not None and (
            isinstance(bound, bool) or not isinstance(bound, int) or bound < 1
        ):
            raise UsageError(f"the bound is {bound!r}", hint="give a number of tasks, at least 1")
        self.bound = self.policy.bound if bound is None else bound
        self._letters = self.policy.dead_letters
        self._durable = self.policy.durable
        self._trims = trims(self.policy.on_full)

    @verb
    def publish(
        self,
        payload: object,
        *,
        delay: float | None = None,
        at: float | None = None,
        after: str | Iterable[str] | None = None,
        after_group: str | None = None,
        on_full: str | None = None,
        durable: str | None = None,
        min_replicas: int | None = None,
        **envelope: Unpack[Envelope],
    ) -> Op[str]:
        """Append one task and return its id.

        `payload` is data that JSON can represent, or a `Task`. `delay` is in seconds, `at` a unix time.
        `envelope` sets fields of `Task`: `key`, `priority`, `headers` and so on. With a `key`, a second
        publish within the policy's window returns the first task's id and appends nothing. `on_full`
        determines what happens at the bound: "refuse" raises `QueueFull`, "trim" drops the oldest tasks.
        With `durable="replica"`, it returns once all connected replicas of the server, at least
        `min_replicas` (by default the policy's, or 1), have confirmed the task; with "disk", once the
        server's disk has. `after` lists ids of tasks that the group `after_group` (`default`) must finish
        first; if one of them becomes dead, so does this task. Raises `QueueFull`, `InvalidPayload`,
        `UsageError`, `OutcomeUnknown`; for `after` also `NotFound` if a task is unknown, and `Refused` if
        one is dead.
        """
        item = Task(payload, **envelope) if envelope else payload
        item = item if self.policy.key_field is None else self.policy.keyed(item)
        trim = self._trims if on_full is None else trims(on_full)
        if after_group is not None and after is None:
            raise UsageError("after_group needs after", hint="leave it out")
        if after is not None and (others := ids.check_ids(after)):
            elsewhere: list[str] = []
            if self._sharded is not None:
                forwarder, group = self._sharded.forwarder, after_group or "default"
                others, elsewhere = forwarder.dependencies(self._bus, others, group)
            after_op = dependencies.publish(
                self._scope,
                self.name,
                item,
                others,
                after_group=after_group,
                bound=self.bound,
                priority=self.policy.tier,
                delay=delay,
                at=at,
                window=self.policy.window,
                letters=self._letters,
                kept=self.policy.results,
                kept_for=self._bus.runner.policies.results_of,
                elsewhere=elsewhere,
            )
            if elsewhere:
                after_op = self._sharded.forwarder.asked(self._bus, after_op, elsewhere)
            return publish.confirmed(after_op, self._bus.runner, self.policy, durable, min_replicas)
        # Pass each keyword by name: unpacking a dict takes a tenth of a publish.
        op: Op[str] = publish.publish(
            self._scope,
            self.name,
            item,
            bound=self.bound,
            priority=self.policy.tier,
            delay=delay,
            at=at,
            window=self.policy.window,
            trim=trim,
        )
        if durable is self._durable is None and min_replicas is None:
            return op
        return publish.confirmed(op, self._bus.runner, self.policy, durable, min_replicas)

    @verb
    def publish_many(
        self,
        payloads: Iterable[object],
        *,
        on_full: str | None = None,
        durable: str | None = None,
        min_replicas: int | None = None,
        **envelope: Unpack[Envelope],
    ) -> Op[list[str]]:
        """Append payloads or `Task`s in batches and return their ids.

        A batch has up to 500 tasks of one priority, or 1 MiB, and is atomic. `envelope` sets fields of each
        task, except those that a `Task` sets itself. Raises `QueueFull` for a batch that does not fit;
        earlier batches stay in the queue. `durable` and `min_replicas` are like those of `publish`, for
        each batch.
        """
        items = self.policy.each_keyed(publish.check_payloads(payloads))
        op: Op[list[str]] = publish.publish_many(
            self._scope, self.name, items, **self._batched(on_full, envelope)
        )
        return publish.confirmed(op, self._bus.runner, self.policy, durable, min_replicas)

    @stream_verb
    def publish_stream(
        self,
        payloads: Iterable[object],
        *,
        on_full: str | None = None,
        durable: str | None = None,
        min_replicas: int | None = None,
        **envelope: Unpack[Envelope],
    ) -> Emits[str]:
        """Append payloads or `Task`s like `publish_many`, and yield each id once its batch is appended.

        Only two batches are in memory, so `payloads` may be infinite. Nothing is published before the first
        iteration.
        """
        items = self.policy.each_keyed(publish.check_payloads(payloads))
        op = publish.publish_stream(
            self._scope, self.name, items, **self._batched(on_full, envelope)
        )
        runner = self._bus.runner
        return Emits(publish.confirmed(op, runner, self.policy, durable, min_replicas), 0.0)

    @verb
    def result(
        self, task_id: str, wait: float | None = None, *, group: str | None = None
    ) -> Patient[Any]:
        """Return the result of a task's handler, waiting up to `wait` seconds for it.

        `group` selects the consumer group whose result is read: by default `default`, or the only existing
        group. Raises `TaskBuried`, `TimedOut`, and `NotFound` if the task is not done or unknown.
        """
        op = results.result(self._scope, task_id, wait, group, self._bus.runner.policies)
        return Patient(or_no_worker(self._scope, op, task=task_id), wait or 0.0)

    @verb
    def peek(self, limit: int = 10) -> Op[list[tuple[str, Any]]]:
        """Return the ids and payloads of the oldest tasks, by priority, without taking them."""
        return ids.peek(self._scope, self.name, limit)

    @verb
    def fetch(
        self,
        *,
        group: str = "default",
        count: int = 10,
        block: float | None = None,
        visibility: float | None = None,
        start: str = "first",
    ) -> Patient[PerBus[list[Delivery], list[AsyncDelivery]]]:
        """Take tasks without a worker, and return their deliveries.

        The caller acknowledges, retries or dead-letters each task. The call waits up to `block` seconds for
        the first one. A task that is not settled within `visibility` seconds (by default the policy's) is
        delivered again, as the next attempt. A redelivered task comes alone, even if `count` is larger,
        because a task beside it could end the process. A new group starts at the queue's oldest task, or
        with `start="tail"` after the newest; an existing one continues.
        """
        op: Op[Any] = fetch(
            self._bus.runner,
            self.name,
            group=group,
            count=count,
            block=block,
            visibility=visibility,
            start=start,
        )
        return Patient(op, block or 0.0)

    @verb
    def replay_from(
        self,
        start: str | float,
        *,
        group: str = "default",
        until: str | float | None = None,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> Op[Replayed]:
        """Redeliver to a group the tasks that it has acknowledged, from `start` on.

        `start` and `until` are task ids, times such as `2024-01-20T15:30:00Z`, durations before now such as
        `30m`, or unix times in seconds. Pending tasks are not affected. Raises `NotFound`.
        """
        names.name("group", group)
        return rerun.replay_from(
            self._scope, self.name, group, start, until, dry_run=dry_run, limit=limit
        )

    @verb
    def dead_letters(
        self,
        group: str = "default",
        limit: int = 100,
        *,
        after: str | None = None,
        match: str | None = None,
    ) -> Op[list[Letter]]:
        """Return the oldest dead letters with their errors, after the one with id `after`.

        `match` selects dead letters whose error contains this text.
        """
        return self._dead(group).oldest(limit, after, match)

    @stream_verb
    def each_dead_letter(
        self, group: str = "default", *, after: str | None = None, match: str | None = None
    ) -> Emits[Letter]:
        """Iterate over the existing dead letters, oldest first, with only one page in memory.

        `after` and `match` are like those of `dead_letters`.
        """
        return Emits(self._dead(group).each(after, match), 0.0)

    @verb
    def letter(self, letter_id: str, *, group: str = "default") -> Op[Letter]:
        """Return the dead letter with this id. Raises `NotFound`."""
        return self._dead(group).letter(letter_id)

    @verb
    def replay(self, letter_id: str, *, group: str = "default", to: str | None = None) -> Op[str]:
        """Publish a dead letter's task again, to this queue or `to`, and return the new task's id.

        Idempotent: a second call returns the same id. Raises `NotFound`, and `UsageError` for a dead letter
        without a task.
        """
        return self._dead(group).replay(letter_id, to=to)

    @verb
    def replay_all(
        self, *, group: str = "default", match: str | None = None, to: str | None = None
    ) -> Op[list[str]]:
        """Publish the tasks of all dead letters that were not yet replayed, and return the new ids.

        `match` selects dead letters whose error contains this text. Each is replayed atomically, but not
        all together; a call after a failure continues where the first one stopped.
        """
        return self._dead(group).replay_all(match=match, to=to)

    @verb
    def purge(self, *ids: str, group: str = "default", match: str | None = None) -> Op[int]:
        """Delete all dead letters, or those with the given ids, and return their number.

        `match` selects dead letters whose error contains this text.
        """
        return self._dead(group).purge(ids, match)

    @verb
    def groups(self) -> Op[list[Group]]:
        """Return the consumer groups of this queue, with their backlogs and consumers.

        Raises `NotFound`.
        """
        return stats.groups(self._scope, self.name, letters_of=self._letters)

    @verb
    def remaining(self, group: str = "default") -> Op[int]:
        """Return how many tasks a group has yet to finish, including tasks that are not due yet."""
        return stats.left(self._scope, self.name, names.name("group", group))

    @verb
    def inspect(
        self,
        group: str = "default",
        *,
        last: int | None = None,
        start: str | None = None,
        limit: int = 20,
    ) -> Op[list[Entry]]:
        """Return tasks of this queue, oldest first, each with its state in a group.

        Delayed tasks, and tasks that wait for others, are included. Returns the oldest `limit` tasks; with
        `start` (a task id, an RFC 3339 time, or `30m` ago), those from there on; with `last`, the newest
        ones. Raises `NotFound`, `UsageError`.
        """
        policies = self._bus.runner.policies
        return entries.inspect(self._scope, self.name, group, last, start, limit, policies)

    @verb
    def delete(self, group: str | None = None, *, force: bool = False) -> Op[Deleted]:
        """Delete this queue with its tasks, dead letters and counters, or only one group of it.

        The call is refused while the queue has live workers or undone tasks, or while tasks of other queues
        wait for these, unless `force` is given: the waiting tasks then become dead. The check and the
        deletion are one atomic step. Results remain as long as they are kept. Live workers create their
        group again, which gets all remaining tasks. Raises `Refused`, `NotFound`.
        """
        letters_of = self._bus.runner.policies.letters_of
        return delete(self._scope, self.name, group, force=force, letters_of=letters_of)

    @verb
    def pause(self, why: str | None = None, *, wait: float = CONFIRM) -> Patient[Order]:
        """Pause this queue: workers stop taking new tasks until `resume`.

        Waits up to `wait` seconds for the workers to confirm, like `bus.pause`.
        """
        op = pause.pause(self._scope, "queue", self.name, why, wait=wait)
        return Patient(op, wait)

    @verb
    def resume(self) -> Op[bool]:
        """Resume this queue, and return whether it was paused."""
        return pause.resume(self._scope, "queue", self.name)

    @verb
    def paused(self) -> Op[Order | None]:
        """Return the order that pauses this queue, or None."""
        return pause.order_of(self._scope, "queue", self.name)

    def _batched(self, on_full: str | None, envelope: Envelope) -> BatchOptions:
        """Return the keyword arguments for publishing batches."""
        rest = {name: value for name, value in envelope.items() if name != "priority"}
        return {
            "bound": self.bound,
            "priority": envelope.get("priority") or self.policy.tier,
            "window": self.policy.window,
            "trim": self._trims if on_full is None else trims(on_full),
            "common": Task(None, **rest) if rest else None,  # type: ignore[arg-type]
        }

    def _dead(self, group: str) -> DeadLetters:
        group = names.name("group", group)
        return DeadLetters(self._scope, self.name, group, letters_of=self._letters)


class AsyncQueue(Awaiting, Queue[Any]):
    """A queue on an `AsyncBus`: a `Queue` whose methods are shown as coroutines by `help`."""
