"""The library's facade: a bus of one project and one agent, with a method for each verb."""

from __future__ import annotations

from agentbus.client.queue_verbs import Labour
from agentbus.client.stats_verbs import Overview
from agentbus.client.subscriptions import Working
from agentbus.client.worker_verbs import Oversight
from agentbus.core.settings import Settings, resolve
from agentbus.queues.runner import Runner
from agentbus.store.verb import Blocking, Emits, Patient, stream_verb, verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Self, TypeVar

    from agentbus.admin.doctor import Finding
    from agentbus.admin.project import Presence, Topic
    from agentbus.coordination.flags import FlagState, Hold
    from agentbus.coordination.hold import Holding
    from agentbus.coordination.message import Message
    from agentbus.coordination.notes import Note
    from agentbus.coordination.wait import Completion
    from agentbus.queues.runner import AsyncRunner
    from agentbus.store.backend import Backend
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.store.verb import Awaiting, PerBus

    T = TypeVar("T")

_FOR_EVER = float("inf")
_READ_AT_ONCE = 100


class Verbs(Labour, Overview, Oversight):
    """The verbs, each defined once for `Bus` and `AsyncBus`."""

    settings: Settings
    scope: Scope
    backend: Backend

    def __init__(self, runner: Runner | AsyncRunner) -> None:
        self.settings, self.backend, self.scope = runner.settings, runner.backend, runner.scope

    @property
    def agent(self) -> str:
        """The agent that speaks and holds through this bus."""
        return self.scope.agent

    @property
    def project(self) -> str:
        """The prefix of this bus's keys."""
        return self.scope.keys.project

    # -- talk --

    @verb
    def speak(self, text: str, *, topic: str | None = None) -> Op[Message]:
        """Say something on the project's channel, and return it as it was stored.

        Repeats after a lost answer are recognised by the server, so it is stored once.
        Raises `InvalidPayload`, `InvalidName`, `OutcomeUnknown`.
        """
        from agentbus.coordination import speak

        return speak.speak(self.scope, text, topic)

    @stream_verb
    def overhear(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        limit: int | None = _READ_AT_ONCE,
        since: str | None = None,
        last: int | None = None,
        peek: bool = False,
        follow: bool = False,
        timeout: float | None = None,
        others: bool = False,
        reset: bool = False,
    ) -> Emits[Message]:
        """Iterate over what this agent has not heard yet, oldest first.

        The cursor moves when a page of messages has been taken, or when the reader leaves, and then
        past those before the one in hand: a reader that dies hears some of them again. Each `topic`
        has a cursor of its own. With `since` (after that id, or from an RFC 3339 time or `30m` ago
        on), `last` or `peek` no cursor moves. `follow` waits for more, for `timeout` seconds or for
        ever, and without a `limit` unless one is given. Messages that were trimmed away unheard are
        reported as one with the event `gap`.
        Raises `EpochMismatch` where the server went back behind a cursor; `reset` starts anew.
        """
        from agentbus.coordination import overhear

        topics = [topic] if isinstance(topic, str) else list(topic or ())
        op = overhear.overhear(
            self.scope,
            topics,
            # Its default is meant for reading what there is, not for following.
            limit=None if follow and limit == _READ_AT_ONCE else limit,
            start=since,
            last=last,
            peek=peek,
            follow=follow,
            timeout=timeout,
            others=others,
            reset=reset,
        )
        return Emits(op, 0.0 if not follow else _FOR_EVER if timeout is None else timeout)

    # -- notes --

    @verb
    def jot(
        self, key: str, value: str, *, tags: Sequence[str] = (), if_absent: bool = False
    ) -> Op[Note]:
        """Write a note, replace its tags, and say so on the channel, in one atomic step.

        Raises `NoteExists` if it was to be written only if absent.
        """
        from agentbus.coordination import notes

        return notes.jot(self.scope, key, value, tags, if_absent=if_absent)

    @verb
    def recall(self, key: str) -> Op[Note]:
        """Return the note with this key. Raises `NotFound`."""
        from agentbus.coordination import notes

        return notes.recall(self.scope, key)

    @verb
    def notes(
        self,
        tags: Sequence[str] = (),
        *,
        all: bool = False,
        latest: int = 10,
    ) -> Op[list[Note]]:
        """Return the newest notes with any of the tags (with `all`: every one), newest first."""
        from agentbus.coordination import notes

        return notes.notes(self.scope, tags, every=all, latest=latest)

    @verb
    def list_(self, *, tag: str | None = None, latest: int = 50) -> Op[list[Note]]:
        """Return the newest notes without their values."""
        from agentbus.coordination import notes

        tags = () if tag is None else (tag,)
        return notes.notes(self.scope, tags, latest=latest, values=False)

    @verb
    def forget(self, key: str) -> Op[None]:
        """Remove a note and its tag entries, in one atomic step. Raises `NotFound`."""
        from agentbus.coordination import notes

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
    ) -> Patient[PerBus[Hold, Hold[Awaiting]]]:
        """Take a flag, or renew this agent's hold of it.

        `ttl` is in seconds; a hold without one ends only by `satisfy` or `release`. `wait` is how
        long to wait for another's hold to end. Raises `FlagHeld`.
        """
        from agentbus.coordination import flags

        op: Op[Any] = flags.announce(self.scope, flag, ttl=ttl, force=force, wait=wait, bus=self)
        return Patient(op, wait or 0.0)

    @verb
    def satisfy(
        self, flag: str, *, force: bool = False, note: str | None = None, token: int | None = None
    ) -> Op[FlagState]:
        """Release a flag as done: record the completion and wake the awaiters, in one atomic step.

        A flag that nobody holds may be satisfied too. With `token`, only the hold with this fencing
        token is ended. Raises `NotHolder`.
        """
        from agentbus.coordination import flags

        return flags.end(self.scope, flag, "satisfied", force=force, note=note, token=token)

    @verb
    def release(self, flag: str, *, force: bool = False, token: int | None = None) -> Op[FlagState]:
        """Give a flag up without calling it done; awaiters of its satisfaction wait on.

        Raises `NotHolder`.
        """
        from agentbus.coordination import flags

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
    ) -> Patient[list[Completion]]:
        """Block until every flag (with `any`: one) is `satisfied`, `announced` or `free`.

        Returns a completion for each flag that came to be so. `timeout` is in seconds, 0 or None for
        no limit. A flag satisfied before counts, unless `fresh`. `delete` consumes the completion,
        for one awaiter only. Raises `TimedOut`.
        """
        from agentbus.coordination import wait as awaiting

        op = awaiting.await_(
            self.scope, flags, until=until, any_=any, timeout=timeout, delete=delete, fresh=fresh
        )
        return Patient(op, timeout or _FOR_EVER)

    @verb
    def flags(self) -> Op[list[FlagState]]:
        """Return every flag that is held or satisfied, by name."""
        from agentbus.coordination import flags

        return flags.states(self.scope)

    def hold(self, flag: str, *, ttl: float = 60.0, wait: float | None = None) -> Holding[Self]:
        """Hold a flag for the length of a `with` (or `async with`) block, renewing it meanwhile.

        It is satisfied if the block ends well, and only released if it raises. Raises `FlagHeld` on
        entry, and `NotHolder` at the end if the hold was lost meanwhile.
        """
        from agentbus.coordination.hold import Holding

        return Holding(self, flag, ttl=ttl, wait=wait)

    # -- the project --

    @verb
    def agents(self) -> Op[list[Presence]]:
        """Return the agents seen on this bus, the last seen first, and what they have not heard."""
        from agentbus.admin import project as inspector

        return inspector.agents(self.scope)

    @verb
    def topics(self) -> Op[list[Topic]]:
        """Return the topics spoken on, the latest first."""
        from agentbus.admin import project as inspector

        return inspector.topics(self.scope)

    @verb
    def queues(self) -> Op[list[str]]:
        """Return the names of the project's queues."""
        from agentbus.store import scan

        return scan.queues(self.scope)

    @verb
    def doctor(self) -> Op[list[Finding]]:
        """Examine the server and the project, and return what was found, with remedies."""
        from agentbus.admin import doctor

        return doctor.diagnose(self.scope, self.settings, self.backend.name)

    @verb
    def clear(self, *, dry_run: bool = False) -> Op[dict[str, int]]:
        """Remove this project's keys and no other's; returns how many of each kind there were."""
        from agentbus.admin import project as inspector

        return inspector.clear(self.scope, dry_run=dry_run)


class Bus(Working, Verbs, Blocking):
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
        """Close the connections; the bus may be used again and opens new ones."""
        self.runner.close()

    def _run(self, name: str, op: Op[T] | Patient[T]) -> T:
        if isinstance(op, Patient):
            return self.runner.run(op.op, verb=name, patience=op.seconds)
        return self.runner.run(op, verb=name)

    def _iterate(self, name: str, op: Patient[Any]) -> Iterator[Any]:
        return self.runner.iterate(op.op, op.seconds)


def connect(
    url: str | None = None,
    *,
    project: str | None = None,
    agent: str | None = None,
    deadline: float | None = None,
) -> Bus:
    """Return a bus; what is not given comes from the environment, the config files, the defaults.

    Nothing is opened before the first verb. `deadline` is how many seconds a verb may take before
    it gives an unresponsive server up.
    """
    return Bus(resolve({"url": url, "project": project, "agent": agent, "deadline": deadline}))
