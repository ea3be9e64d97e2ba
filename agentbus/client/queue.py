"""A queue as its users hold it, on a blocking bus or an asynchronous one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.admin import entries, pause, stats
from agentbus.client.verb import Emits, Patient
from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.queues import dead_letters, dependencies, ids as queue, publish, rerun, results

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentbus.store.scope import Scope


class Queue:
    """Publishes tasks. On an `AsyncBus` every method returns an awaitable.

    What is not given is as the queue's policy says.
    """

    def __init__(self, bus: Any, name: str, *, bound: int | None = None) -> None:
        self._bus = bus
        self.name = names.name("queue", name)
        self.policy = bus.policy(name)
        if bound is not None and (
            isinstance(bound, bool) or not isinstance(bound, int) or bound < 1
        ):
            raise UsageError(f"the bound is {bound!r}", hint="give a number of tasks, at least 1")
        self.bound = self.policy.bound if bound is None else bound
        # Each publish needs them.
        self._usual = self._options(None, None)

    def publish(
        self,
        payload: object,
        *,
        delay: float | None = None,
        at: float | None = None,
        after: str | Iterable[str] | None = None,
        after_group: str | None = None,
        on_full: str | None = None,
        **envelope: Any,
    ) -> Any:
        """Append one task and return its id. Raises `QueueFull`, `InvalidPayload`.

        `delay` is in seconds, `at` in unix seconds. The envelope's fields are those of `Task`; a `Task`
        may be given instead of a payload. `after` are the ids of tasks that are to be done first, by the
        group `after_group` (`default`); if one of them is buried, this one is, too. Raises `NotFound` for
        one of which nothing is known, and `Refused` for one that was buried.
        """
        item = publish.Task(payload, **envelope) if envelope else payload
        if after_group is not None and after is None:
            raise UsageError("after_group goes with after", hint="leave it out")
        if after is not None and (ids := [after] if isinstance(after, str) else [*after]):
            op = dependencies.publish(
                self._bus.scope,
                self.name,
                self.policy.keyed(item),
                ids,
                after_group=after_group,
                delay=delay,
                at=at,
                **self._waiting(on_full),
            )
            return self._bus._run("publish", op)
        op = publish.publish(
            self._bus.scope,
            self.name,
            self.policy.keyed(item),
            delay=delay,
            at=at,
            **(self._usual if on_full is None else self._options(None, on_full)),
        )
        return self._bus._run("publish", op)

    def publish_many(
        self,
        payloads: Iterable[object],
        *,
        priority: str | None = None,
        on_full: str | None = None,
    ) -> Any:
        """Append any number of payloads or `Task`s, a batch at a time, and return their ids.

        A batch of up to 500 tasks of one priority is accepted whole or refused whole, with `QueueFull`;
        those before it stay accepted.
        """
        op = publish.publish_many(
            self._bus.scope,
            self.name,
            self.policy.each_keyed(_several(payloads)),
            **self._options(priority, on_full),
        )
        return self._bus._run("publish", op)

    def publish_stream(
        self,
        payloads: Iterable[object],
        *,
        priority: str | None = None,
        on_full: str | None = None,
    ) -> Any:
        """Append as `publish_many` does, and iterate over the ids as batches are accepted.

        Nothing is kept but the batch in hand and the next, so the stream may have no end.
        """
        op = publish.publish_stream(
            self._bus.scope,
            self.name,
            self.policy.each_keyed(_several(payloads)),
            **self._options(priority, on_full),
        )
        return self._bus._iterate("publish", Emits(op, 0.0))

    def result(self, task_id: str, wait: float | None = None, *, group: str | None = None) -> Any:
        """Return what a task came to, None if that was nothing; waits for it so many seconds.

        Where several groups do the task, `group` says whose result is meant: by default that of the group
        `default`, or of the only one. Raises `TaskBuried`, `NotFound`, `TimedOut`.
        """
        said = self._bus._policies()
        op = results.result(
            self._bus.scope,
            task_id,
            wait,
            group,
            kept_for=said.results_of,
            letters_of=said.letters_of,
        )
        return self._bus._run("result", Patient(op, wait or 0.0))

    def peek(self, limit: int = 10) -> Any:
        """Return the oldest tasks without taking them."""
        return self._bus._run("peek", queue.peek(self._bus.scope, self.name, limit))

    def fetch(
        self,
        *,
        group: str = "default",
        count: int = 10,
        block: float | None = None,
        visibility: float | None = None,
    ) -> Any:
        """Take tasks by hand: a list of deliveries, each to be acknowledged, retried or buried.

        Waits at most `block` seconds for the first one. A task that is not settled within the `visibility`
        (in seconds, by default the policy's) is delivered again, as the next attempt.
        """
        from agentbus.workers.fetch import fetch

        op = fetch(
            self._bus.runner,
            self.name,
            group=group,
            count=count,
            block=block,
            visibility=visibility,
        )
        return self._bus._run("fetch", Patient(op, block or 0.0))

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
        op = rerun.replay_from(
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
        op = dead_letters.dead_letters(
            *self._box(group), limit, after, match, letters_of=self.policy.dead_letters
        )
        return self._bus._run("dlq", op)

    def letter(self, letter_id: str, *, group: str = "default") -> Any:
        """Return one dead letter. Raises `NotFound`."""
        where = self.policy.dead_letters
        op = dead_letters.letter(*self._box(group), letter_id, letters_of=where)
        return self._bus._run("dlq", op)

    def replay(self, letter_id: str, *, group: str = "default", to: str | None = None) -> Any:
        """Publish a dead letter's task anew, once, and return the new task's id."""
        where = self.policy.dead_letters
        op = dead_letters.replay(*self._box(group), letter_id, to=to, letters_of=where)
        return self._bus._run("replay", op)

    def replay_all(
        self, *, group: str = "default", match: str | None = None, to: str | None = None
    ) -> Any:
        """Publish the tasks of all dead letters anew that were not yet, and return the new ids.

        With `match` only those whose error holds this text.
        """
        where = self.policy.dead_letters
        op = dead_letters.replay_all(*self._box(group), match=match, to=to, letters_of=where)
        return self._bus._run("replay", op)

    def purge(self, *ids: str, group: str = "default", match: str | None = None) -> Any:
        """Remove dead letters, those named or all; returns how many.

        With `match` only those of them whose error holds this text.
        """
        where = self.policy.dead_letters
        op = dead_letters.purge(*self._box(group), ids, match, letters_of=where)
        return self._bus._run("purge", op)

    def groups(self) -> Any:
        """Return the groups of this queue, how far each is, and its consumers. Raises `NotFound`."""
        where = self.policy.dead_letters
        op = stats.groups(self._bus.scope, self.name, letters_of=where)
        return self._bus._run("groups", op)

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

    def pause(self, why: str | None = None, *, wait: float = pause.CONFIRM) -> Any:
        """Have nothing new taken from this queue until `resume`; see `bus.pause`."""
        op = pause.pause(self._bus.scope, "queue", self.name, why, wait=wait)
        return self._bus._run("pause", Patient(op, wait))

    def resume(self) -> Any:
        """Let tasks be taken again; tells whether the queue was paused."""
        return self._bus._run("resume", pause.resume(self._bus.scope, "queue", self.name))

    def paused(self) -> Any:
        """Return the order that pauses this queue, or None."""
        return self._bus._run("paused", pause.order_of(self._bus.scope, "queue", self.name))

    def _options(self, priority: str | None, on_full: str | None) -> dict[str, Any]:
        """Return how to publish: as the call says, or else the policy."""
        full = self.policy.on_full if on_full is None else on_full
        publish.on_full(full)
        return {
            "bound": self.bound,
            "priority": self.policy.tier if priority is None else priority,
            "window": self.policy.window,
            "trim": full == "trim",
        }

    def _waiting(self, on_full: str | None) -> dict[str, Any]:
        """Return how to publish what waits for others; it is refused at the bound in any case."""
        options = self._options(None, on_full)
        del options["trim"]
        return {
            **options,
            "letters": self.policy.dead_letters,
            "kept": self.policy.results,
            "kept_for": self._bus._policies().results_of,
        }

    def _box(self, group: str) -> tuple[Scope, str, str]:
        return self._bus.scope, self.name, names.name("group", group)


def _several(payloads: Iterable[object]) -> Iterable[object]:
    # Their letters, or names, would be published one by one: never what was meant.
    if isinstance(payloads, (str, bytes, dict)):
        raise UsageError(
            f"the payloads are one {type(payloads).__name__}",
            hint="give a list of them, or publish",
        )
    return payloads
