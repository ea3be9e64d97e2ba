"""A queue as its users hold it, on a blocking bus or an asynchronous one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus import (
    entries,
    figures,
    letters,
    names,
    pausing,
    publishing,
    queue,
    replaying,
    results,
)
from agentbus.verb import Emits, Patient

if TYPE_CHECKING:
    from collections.abc import Iterable


class Queue:
    """Publishes tasks. On an `AsyncBus` every method returns an awaitable."""

    def __init__(self, bus: Any, name: str, *, bound: int | None = None) -> None:
        self._bus = bus
        self.name = names.name("queue", name)
        self.bound = queue.bound_of(name) if bound is None else bound

    def publish(
        self,
        payload: object,
        *,
        delay: float | None = None,
        at: float | None = None,
        on_full: str = "refuse",
        **envelope: Any,
    ) -> Any:
        """Append one task and return its id. Raises `QueueFull`, `InvalidPayload`.

        `delay` is in seconds, `at` in unix seconds. The envelope's fields are those of `Task`; a `Task`
        may be given instead of a payload.
        """
        publishing.on_full(on_full)
        op = publishing.publish(
            self._bus.scope,
            self.name,
            publishing.Task(payload, **envelope) if envelope else payload,
            bound=self.bound,
            delay=delay,
            at=at,
            trim=on_full == "trim",
        )
        return self._bus._run("publish", op)

    def publish_many(
        self, payloads: Iterable[object], *, priority: str = "normal", on_full: str = "refuse"
    ) -> Any:
        """Append any number of payloads or `Task`s, a batch at a time, and return their ids.

        A batch of up to 500 tasks of one priority is accepted whole or refused whole, with `QueueFull`;
        those before it stay accepted.
        """
        publishing.on_full(on_full)
        op = publishing.publish_many(
            self._bus.scope,
            self.name,
            payloads,
            priority=priority,
            bound=self.bound,
            trim=on_full == "trim",
        )
        return self._bus._run("publish", op)

    def publish_stream(
        self, payloads: Iterable[object], *, priority: str = "normal", on_full: str = "refuse"
    ) -> Any:
        """Append as `publish_many` does, and iterate over the ids as batches are accepted.

        Nothing is kept but the batch in hand and the next, so the stream may have no end.
        """
        publishing.on_full(on_full)
        op = publishing.publish_stream(
            self._bus.scope,
            self.name,
            payloads,
            priority=priority,
            bound=self.bound,
            trim=on_full == "trim",
        )
        return self._bus._iterate("publish", Emits(op, 0.0))

    def result(self, task_id: str, wait: float | None = None, *, group: str | None = None) -> Any:
        """Return what a task came to, None if that was nothing; waits for it so many seconds.

        Where several groups do the task, `group` says whose result is meant: by default that of the group
        `default`, or of the only one. Raises `TaskBuried`, `NotFound`, `TimedOut`.
        """
        op = results.result(self._bus.scope, task_id, wait, group)
        return self._bus._run("result", Patient(op, wait or 0.0))

    def peek(self, limit: int = 10) -> Any:
        """Return the oldest tasks without taking them."""
        return self._bus._run("peek", queue.peek(self._bus.scope, self.name, limit))

    def fetch(self, *, group: str = "default", count: int = 10, block: float | None = None) -> Any:
        """Take tasks by hand: a list of deliveries, each to be acknowledged, retried or buried.

        Waits at most `block` seconds for the first one. Only on a blocking bus.
        """
        from agentbus.pulling import fetch

        return fetch(self._bus, self.name, group=group, count=count, block=block)

    def replay_from(
        self,
        start: str | float,
        *,
        group: str = "default",
        until: str | float | None = None,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> Any:
        """Deliver what a group acknowledged to it again, from `start` on; returns a `Replayed`.

        `start` and `until` are ids of tasks, times such as `2024-01-20T15:30:00Z`, durations such as
        `30m` (ago), or unix seconds. Tasks that are pending are left alone. Raises `NotFound`.
        """
        names.name("group", group)
        op = replaying.replay_from(
            self._bus.scope, self.name, group, start, until, dry_run=dry_run, limit=limit
        )
        return self._bus._run("replay_from", op)

    def dead_letters(
        self,
        group: str = "default",
        limit: int = 100,
        *,
        after: str | None = None,
        match: str | None = None,
    ) -> Any:
        """Return the oldest dead letters, with their errors, past the one with the id `after`.

        With `match` only those whose error holds this text.
        """
        names.name("group", group)
        op = letters.dead_letters(self._bus.scope, self.name, group, limit, after, match)
        return self._bus._run("dlq", op)

    def letter(self, letter_id: str, *, group: str = "default") -> Any:
        """Return one dead letter. Raises `NotFound`."""
        names.name("group", group)
        return self._bus._run("dlq", letters.letter(self._bus.scope, self.name, group, letter_id))

    def replay(self, letter_id: str, *, group: str = "default", to: str | None = None) -> Any:
        """Publish a dead letter's task anew, once, and return the new task's id."""
        names.name("group", group)
        return self._bus._run(
            "replay", letters.replay(self._bus.scope, self.name, group, letter_id, to=to)
        )

    def replay_all(
        self, *, group: str = "default", match: str | None = None, to: str | None = None
    ) -> Any:
        """Publish the tasks of all dead letters anew that were not yet, and return the new ids.

        With `match` only those whose error holds this text.
        """
        names.name("group", group)
        op = letters.replay_all(self._bus.scope, self.name, group, match=match, to=to)
        return self._bus._run("replay", op)

    def purge(self, *ids: str, group: str = "default", match: str | None = None) -> Any:
        """Remove dead letters, those named or all; returns how many.

        With `match` only those of them whose error holds this text.
        """
        names.name("group", group)
        op = letters.purge(self._bus.scope, self.name, group, ids, match)
        return self._bus._run("purge", op)

    def groups(self) -> Any:
        """Return the groups of this queue, how far each is, and its consumers. Raises `NotFound`."""
        return self._bus._run("groups", figures.groups(self._bus.scope, self.name))

    def inspect(
        self,
        group: str = "default",
        *,
        last: int | None = None,
        start: str | None = None,
        limit: int = 20,
    ) -> Any:
        """Return entries, decoded, and how a group is with each. Raises `NotFound`."""
        return self._bus._run(
            "inspect",
            entries.inspect(self._bus.scope, self.name, group, last=last, start=start, limit=limit),
        )

    def pause(self, why: str | None = None, *, wait: float = pausing.CONFIRM) -> Any:
        """Have nothing new taken from this queue until `resume`; see `bus.pause`."""
        op = pausing.pause(self._bus.scope, "queue", self.name, why, wait=wait)
        return self._bus._run("pause", Patient(op, wait))

    def resume(self) -> Any:
        """Let tasks be taken again; tells whether the queue was paused."""
        return self._bus._run("resume", pausing.resume(self._bus.scope, "queue", self.name))

    def paused(self) -> Any:
        """Return the order that pauses this queue, or None."""
        return self._bus._run("paused", pausing.order_of(self._bus.scope, "queue", self.name))
