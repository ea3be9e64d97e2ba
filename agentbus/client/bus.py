"""The blocking bus: one project and one agent, with a method for each verb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agentbus.admin import doctor, project
from agentbus.client import preload
from agentbus.client.inbox_verbs import InboxVerbs
from agentbus.client.lease_verbs import LeaseVerbs
from agentbus.client.presence_verbs import PresenceVerbs
from agentbus.client.queue_verbs import QueueVerbs
from agentbus.client.sharded import Shards, spread
from agentbus.client.stats_verbs import StatsVerbs
from agentbus.client.subscriptions import Subscriptions
from agentbus.client.worker_verbs import WorkerVerbs
from agentbus.coordination import flags, notes, overhear, speak, wait, waiters
from agentbus.coordination.hold import Holding
from agentbus.core import greenlets
from agentbus.core.errors import Refused, UsageError
from agentbus.core.settings import Settings, resolve
from agentbus.queues import shards
from agentbus.queues.runner import Runner
from agentbus.store import scan
from agentbus.store.verb import Blocking, Emits, Patient, stream_verb, verb
from agentbus.workers.registry import workers

if TYPE_CHECKING:
    from agentbus.admin.doctor import Finding
    from agentbus.admin.project import AgentActivity, Topic
    from agentbus.coordination.flags import FlagState, Hold
    from agentbus.coordination.message import Message
    from agentbus.coordination.notes import Note
    from agentbus.coordination.wait import Completion
    from agentbus.coordination.waiters import Waiter
    from agentbus.queues.runner import AsyncRunner
    from agentbus.queues.shards import Shard
    from agentbus.store.connection import Backend
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.store.verb import Awaiting, PerBus


T = TypeVar("T")

_FOR_EVER = float("inf")
_READ_AT_ONCE = 100


class Verbs(InboxVerbs, LeaseVerbs, PresenceVerbs, QueueVerbs, StatsVerbs, WorkerVerbs):
    """The verbs, each defined once for `Bus` and `AsyncBus`."""

    settings: Settings
    scope: Scope
    backend: Backend
    _sharded: Shards | None = None

    def __init__(self, runner: Runner | AsyncRunner) -> None:
        self.settings, self.backend, self.scope = runner.settings, runner.backend, runner.scope
        # Only a cluster has shards; a bus on one of them has no others.
        if runner.backend.wraps and shards.MARK not in self.scope.keys.project:
            self._sharded = spread(self)

    def __repr__(self) -> str:
        server = self.backend.name
        return f"<{type(self).__name__} project={self.project!r} agent={self.agent!r} server={server!r}>"

    @property
    def agent(self) -> str:
        """The name of the agent that uses this bus."""
        return self.scope.agent

    @property
    def project(self) -> str:
        """The project: the prefix of this bus's keys."""
        return self.scope.keys.project

    # -- talk --

    @verb
    def speak(self, text: str, *, topic: str | None = None) -> Op[Message]:
        """Publish a message on the project's channel and return it as stored.

        A retry after a lost reply is recognized by the server, so the message is stored once. Raises
        `InvalidPayload`, `InvalidName`, `OutcomeUnknown`.
        """
        return speak.speak(self.scope, text, topic)

    @stream_verb
    def overhear(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        limit: int | EllipsisType | None = ...,
        since: str | None = None,
        last: int | None = None,
        peek: bool = False,
        follow: bool = False,
        timeout: float | None = None,
        others: bool = False,
        reset: bool = False,
        start: str = "first",
    ) -> Emits[Message]:
        """Iterate over the channel's messages that this agent has not yet read, oldest first.

        The iteration ends after `limit` messages (None: no limit). The default limit is 100; with `follow`
        there is none. Each `topic` has its own cursor. Cursors advance after each page of messages and,
        when the loop ends, up to the message before the current one, so a reader that crashes reads some
        messages again. With `since` (a message id, an RFC 3339 time, or `30m` ago), `last` or `peek`, no
        cursor moves. `follow` waits for new messages, for `timeout` seconds or without end. `others` leaves
        out this agent's own messages. A range that was trimmed before it was read appears as one message
        with the event `gap`. Raises `EpochMismatch` if the server lost data after the cursor's position;
        `reset` starts again from the oldest message. `start` is where an agent without a cursor begins: at
        the `first` message, or at the `newest`, of which it gets `limit`. With `newest`, a topic without a
        cursor begins at the agent's cursor for all topics, and skipped messages appear as one message with
        the event `skipped`, after whose id they can be read.
        """
        topics = [topic] if isinstance(topic, str) else () if topic is None else topic
        if limit is ...:
            # The default limit is for reading a backlog, not for following.
            limit = None if follow else _READ_AT_ONCE
        op = overhear.overhear(
            self.scope,
            topics,
            limit=limit,
            start=since,
            last=last,
            peek=peek,
            follow=follow,
            timeout=timeout,
            others=others,
            reset=reset,
            begin=start,
        )
        return Emits(op, 0.0 if not follow else _FOR_EVER if timeout is None else timeout)

    # -- notes --

    @verb
    def jot(
        self, key: str, value: str, *, tags: Sequence[str] = (), if_absent: bool = False
    ) -> Op[Note]:
        """Store a note, replace its tags, and publish the change on the channel, atomically.

        With `if_absent`, it raises `NoteExists` if the key is in use.
        """
        return notes.jot(self.scope, key, value, tags, if_absent=if_absent)

    @verb
    def recall(self, key: str) -> Op[Note]:
        """Return the note with this key. Raises `NotFound`."""
        return notes.recall(self.scope, key)

    @verb
    def notes(
        self,
        tags: Sequence[str] = (),
        *,
        all: bool = False,
        latest: int = 10,
    ) -> Op[list[Note]]:
        """Return the `latest` newest notes with any of the tags, or with `all` those with every tag.

        Without tags it returns the newest of all notes. The newest note comes first.
        """
        return notes.notes(self.scope, tags, every=all, latest=latest)

    @verb
    def list_(self, *, tag: str | Sequence[str] | None = None, latest: int = 50) -> Op[list[Note]]:
        """Return the `latest` newest notes, or those with a tag (any of several), without values."""
        tags = (tag,) if isinstance(tag, str) else () if tag is None else tag
        return notes.notes(self.scope, tags, latest=latest, values=False)

    @verb
    def forget(self, key: str) -> Op[None]:
        """Delete a note and its tag entries, atomically. Raises `NotFound`."""
        return notes.forget(self.scope, key)

    # -- flags --

    @verb
    def announce(
        self,
        flag: str,
        *,
        ttl: float | None = None,
        force: bool = False,
        wait: float | None = None,
        token: int | None = None,
        renew: bool = True,
        note: str | None = None,
    ) -> Patient[PerBus[Hold, Hold[Awaiting]]]:
        """Acquire a flag, or renew this agent's hold of it, and return the hold.

        `ttl` is in seconds; a hold without a TTL ends only by `satisfy`, `fail` or `release`. `wait` is the
        number of seconds to wait for a hold to end; `force` replaces another agent's hold. With `token`,
        the hold with this fencing token is renewed, whichever agent has it, and nothing is acquired. With
        `renew=False`, every hold excludes the caller, even this agent's own. The channel's message has the
        `note`. Raises `FlagHeld`, and `NotHolder` if the hold with the token has ended.
        """
        op: Op[Any] = flags.announce(
            self.scope,
            flag,
            ttl=ttl,
            force=force,
            wait=wait,
            token=token,
            renew=renew,
            note=note,
            bus=self,
        )
        return Patient(op, wait or 0.0)

    @verb
    def satisfy(
        self, flag: str, *, force: bool = False, note: str | None = None, token: int | None = None
    ) -> Op[FlagState]:
        """End a hold as done: store the completion and wake the agents that await the flag, atomically.

        A flag without a holder can be satisfied, too. With `token`, only the hold with this fencing token
        is ended; with `force`, another agent's hold, too. Raises `NotHolder`.
        """
        return flags.end(self.scope, flag, "satisfied", force=force, note=note, token=token)

    @verb
    def fail(
        self, flag: str, *, force: bool = False, note: str | None = None, token: int | None = None
    ) -> Op[FlagState]:
        """End a hold as failed: store the failure, and wake the agents that await the flag, atomically.

        Their `await_` raises `FlagFailed` with the note. The next `announce` or `satisfy` clears the
        failure. The other parameters are like those of `satisfy`. Raises `NotHolder`.
        """
        return flags.end(self.scope, flag, "failed", force=force, note=note, token=token)

    @verb
    def release(self, flag: str, *, force: bool = False, token: int | None = None) -> Op[FlagState]:
        """End a hold without an outcome; agents that await the flag keep waiting.

        `token` and `force` are like those of `satisfy`. Raises `NotHolder`.
        """
        return flags.end(self.scope, flag, "released", force=force, token=token)

    @verb
    def await_(
        self,
        *flags: str,
        until: str = "satisfied",
        any: bool = False,
        timeout: float | None = 1800,
        delete: bool = False,
        fresh: bool = False,
        ignore_failures: bool = False,
        fail_on_expiry: bool = False,
    ) -> Patient[list[Completion]]:
        """Wait until every flag (with `any`, at least one) is `satisfied`, `announced` or `free`.

        Returns a completion for each flag in that state. `timeout` is in seconds; 0 or None means no limit.
        An existing completion or failure counts, unless `fresh`. `delete` consumes it, so that only one
        agent gets it. Raises `TimedOut`, and `FlagFailed` as soon as a flag fails (with `any`, once all
        have failed), unless `until` is another state or `ignore_failures` is given. With `fail_on_expiry`,
        a hold that expires during the wait, as that of a killed holder does, has failed.
        """
        op = wait.await_(
            self.scope,
            flags,
            until=until,
            any_=any,
            timeout=timeout,
            delete=delete,
            fresh=fresh,
            ignore_failures=ignore_failures,
            fail_on_expiry=fail_on_expiry,
        )
        return Patient(op, timeout or _FOR_EVER)

    @verb
    def flags(self, *, limit: int | None = None) -> Op[list[FlagState]]:
        """Return all flags that are held, satisfied or failed, by name; at most the first `limit`."""
        return flags.states(self.scope, limit)

    @verb
    def waiters(self) -> Op[list[Waiter]]:
        """Return which agents wait for which flags, by flag, with the awaited state and the start time.

        A waiter that was killed is listed for up to 30 seconds.
        """
        return waiters.waiters(self.scope)

    def hold(
        self,
        flag: str,
        *,
        ttl: float = 60.0,
        wait: float | None = None,
        on_failure: str = "fail",
    ) -> Holding[Self]:
        """Return a context manager that holds a flag during a `with` (or `async with`) block.

        Any existing hold excludes it, even one of this agent, in another thread or coroutine. It renews the
        hold every third of `ttl` seconds, and satisfies the flag if the block succeeds. If the block raises
        an exception, the flag fails with the exception as its note, or is released with
        `on_failure="release"`. Raises `FlagHeld` on entry, and `NotHolder` at the end if the hold was lost
        during the block.
        """
        return Holding(self, flag, ttl=ttl, wait=wait, on_failure=on_failure)

    # -- the project --

    @verb
    def agents(self, *, limit: int | None = None) -> Op[list[AgentActivity]]:
        """Return the agents (at most `limit`), last seen first, with their unread messages."""
        return project.agents(self.scope, limit)

    @verb
    def topics(self) -> Op[list[Topic]]:
        """Return the topics of the channel's messages, most recently used first."""
        return project.topics(self.scope)

    @verb
    def queues(self) -> Op[list[str]]:
        """Return the names of the project's queues."""
        return scan.queues(self.scope)

    @verb
    def shards(self) -> Op[list[Shard]]:
        """Return the project's shards, home first, each with its node. Raises `NotFound` without shards."""
        return shards.shards(self.scope)

    @verb
    def set_shards(self, number: int) -> Op[list[Shard]]:
        """Spread new queues over `number` shards, and return all shards.

        Queues that exist stay where they are. The prefixes of the shards are chosen so that they are spread
        evenly over the nodes. With a smaller number than before, the other shards stay, but get no new
        queues. The first call is refused while workers run, since they look for their queues where they
        have been. Raises `UsageError` unless the URL is that of a cluster, and `Refused`.
        """
        return self._set_shards(number)

    def at(self, queue: str) -> Self:
        """Return the bus of the shard with a queue: this bus, unless the project has shards.

        What concerns several queues or tasks at once, such as a flow, needs the bus of their shard. A queue
        that does not exist gets its place. It blocks for a request, once for each queue.
        """
        place: Self = self if self._sharded is None else self._sharded.of(queue, record=True)
        return place

    def _set_shards(self, number: int) -> Op[list[Shard]]:
        if self._sharded is None or self._sharded.home is not self:
            raise UsageError(
                "shards need a Redis Cluster, and the URL is that of one server",
                hint="write redis+cluster://host:port in the URL",
            )
        if not (yield from shards.numbers(self.scope)):
            alive = [each.worker for each in (yield from workers(self.scope)) if each.alive]
            if alive:
                raise Refused(
                    f"workers of the project run, such as {alive[0]!r}",
                    hint="stop them, set the shards, and start them again",
                )
        listed = yield from shards.set_number(self.scope, number)
        self._sharded.forget()
        return listed

    @verb
    def doctor(self) -> Op[list[Finding]]:
        """Check the server and the project, and return the findings with remedies."""
        return doctor.diagnose(self.scope, self.settings, self.backend.name)

    @verb
    def clear(self, *, dry_run: bool = False) -> Op[dict[str, int]]:
        """Delete this project's keys, and return the number of keys of each kind.

        With `dry_run`, it only counts them. Not atomic.
        """
        return project.clear(self.scope, dry_run=dry_run)


class Bus(Subscriptions, Verbs, Blocking):
    """A blocking bus; threads may share it."""

    runner: Runner

    def __init__(self, settings: Settings) -> None:
        self.runner = Runner(settings)
        super().__init__(self.runner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; if the bus is used again, it opens new ones."""
        self.runner.close()
        if self._sharded is not None and self._sharded.home is self:
            for bus in self._sharded.opened():
                bus.close()

    def _run(self, name: str, op: Op[T] | Patient[T]) -> T:
        if isinstance(op, Patient):
            self._check_wait(name, op)
            return self.runner.run(op.op, verb=name, patience=op.seconds)
        return self.runner.run(op, verb=name)

    def _iterate(self, name: str, op: Patient[Any]) -> Iterator[Any]:
        self._check_wait(name, op)
        return self.runner.iterate(op.op, op.seconds, verb=name)

    def _check_wait(self, name: str, op: Patient[Any]) -> None:
        if op.seconds:
            greenlets.check(f"to wait in '{name.strip('_')}'")


def connect(
    url: str | None = None,
    *,
    project: str | None = None,
    agent: str | None = None,
    deadline: float | None = None,
) -> Bus:
    """Return a bus; missing arguments come from the environment, configuration files, or defaults.

    No connection is opened before the first verb. `deadline` is the number of seconds after which a verb
    gives up on a server that does not respond. Raises `ConfigError`.
    """
    preload.load()
    return Bus(resolve({"url": url, "project": project, "agent": agent, "deadline": deadline}))
