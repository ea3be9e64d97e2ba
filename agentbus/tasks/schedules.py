"""Schedules: tasks that are published repeatedly, by a period or a cron expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from agentbus.core import names
from agentbus.core.errors import NotFound, Refused, UsageError
from agentbus.core.stream import text
from agentbus.queues import publish
from agentbus.store.steps import Batch, Command, Script, ServerReply
from agentbus.store.verb import BusT_co, OnBus, verb
from agentbus.tasks import schedule_record
from agentbus.tasks.schedule_record import Definition, ScheduleState, task_of

if TYPE_CHECKING:
    from agentbus.core.envelope import Envelope
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_AT_ONCE = 500
# Marker for an unchanged due time.
_AS_BEFORE = "="


@dataclass(frozen=True, slots=True)
class Synced:
    """The names of schedules that `Schedules.sync` has added, changed and removed."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


class Schedules(OnBus[BusT_co]):
    """The schedules of the project of a `Bus` or an `AsyncBus`; on an `AsyncBus`, its methods are awaited.

    Schedulers publish their ticks: `Scheduler(bus).run()`, or `agentbus schedule run`. Any number of
    schedulers may run.
    """

    def __init__(self, bus: BusT_co) -> None:
        on: Any = bus
        self._scope: Scope = on.scope
        self._run, self._iterate = on._run, on._iterate
        self._policies = on.runner.policies
        self._bus, self._sharded = on, on._sharded

    @verb
    def add(
        self,
        name: str,
        queue: str,
        payload: object = None,
        *,
        every: float | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        missed: str = "once",
        **envelope: Unpack[Envelope],
    ) -> Op[ScheduleState]:
        """Add a schedule, or change the existing one with this name, and return it.

        It publishes `payload` to `queue` every `every` seconds from now on, or whenever the clocks of
        `timezone` match `cron`. `missed` determines what becomes of ticks that no scheduler published in
        time: of those that are due, "once" publishes the latest, "all" publishes each of the latest 100,
        and "none" publishes the latest unless it is over a minute late. `envelope` is like that of
        `publish`. Nothing changes if the schedule is already defined so. A change of the period, the
        expression or the zone resets the due time; any other change keeps it. A paused schedule stays
        paused. Raises `UsageError`, `InvalidPayload`.
        """
        given = Definition(name, queue, payload, every, cron, timezone, missed, {**envelope})
        self._check([given])
        return _add(self._scope, given, None)

    @verb
    def list(self) -> Op[list[ScheduleState]]:
        """Return all schedules, by name."""
        return listed(self._scope)

    @verb
    def show(self, name: str) -> Op[ScheduleState]:
        """Return a schedule. Raises `NotFound`."""
        return _shown(self._scope, name)

    @verb
    def pause(self, name: str) -> Op[ScheduleState]:
        """Pause a schedule: it has no ticks until `resume`, and none count as missed.

        Raises `NotFound`.
        """
        return _set_paused(self._scope, name, paused=True)

    @verb
    def resume(self, name: str) -> Op[ScheduleState]:
        """Resume a paused schedule from its next due time on. Raises `NotFound`."""
        return _set_paused(self._scope, name, paused=False)

    @verb
    def trigger(self, name: str) -> Op[str]:
        """Publish a schedule's task now, even if it is paused, and return the task's id.

        Its due time does not change. Raises `NotFound`, `QueueFull`.
        """
        return self._trigger(name)

    @verb
    def remove(self, name: str) -> Op[None]:
        """Remove a schedule; tasks that it has published remain. Raises `NotFound`."""
        return _removed(self._scope, name)

    @verb
    def sync(self, definitions: Iterable[Definition], *, owner: str) -> Op[Synced]:
        """Add and change schedules as declared by a program, and remove those that it no longer declares.

        `owner` names the program. It takes over schedules without an owner. Each schedule is changed in one
        atomic step, but not all together. Raises `Refused` for a schedule of another owner, `UsageError`,
        `InvalidPayload`.
        """
        given = [*definitions]
        self._check(given)
        return _synced(self._scope, given, names.name("owner", owner))

    def _check(self, definitions: Iterable[Definition]) -> None:
        if self._sharded is not None:
            # The end of a task frees its key on its own shard, and a tick's key is on that of the schedule.
            unique = [schedule.queue for schedule in definitions if schedule.envelope.get("unique")]
            self._sharded.check(self._bus, unique, "a schedule with unique=")

    def _trigger(self, name: str) -> Op[str]:
        schedule = yield from _shown(self._scope, name)
        policy = self._policies.policy_of(schedule.queue)
        return (
            yield from publish.publish(
                self._scope,
                schedule.queue,
                task_of(schedule, None),
                bound=policy.bound,
                priority=policy.tier,
                window=policy.window,
                trim=policy.on_full == "trim",
            )
        )


def _add(scope: Scope, given: Definition, owner: str | None) -> Op[ScheduleState]:
    wanted = schedule_record.checked(scope, given)

    def change(stored: ScheduleState | None, now: int) -> tuple[ScheduleState, str | None] | None:
        if stored is None:
            new = replace(
                wanted, version=1, owner=owner, agent_id=scope.agent, created=now, anchor=now
            )
            return new, schedule_record.due_text(new, now)
        if owner is not None and stored.owner not in (None, owner):
            raise Refused(
                f"the schedule {stored.name!r} belongs to {stored.owner!r}",
                hint="give yours another name, or remove that one",
            )
        same_times = schedule_record.has_times_of(wanted, stored)
        new = replace(
            wanted,
            version=stored.version + 1,
            owner=owner if owner is not None else stored.owner,
            agent_id=scope.agent,
            created=stored.created,
            anchor=stored.anchor if same_times else now,
            paused=stored.paused,
        )
        if schedule_record.is_defined_as(new, stored) and new.owner == stored.owner:
            return None
        if same_times or new.paused:
            return new, _AS_BEFORE
        return new, schedule_record.due_text(new, now)

    return (yield from _changed(scope, given.name, change))


def _changed(
    scope: Scope,
    name: str,
    change: Callable[[ScheduleState | None, int], tuple[ScheduleState | None, str | None] | None],
) -> Op[ScheduleState]:
    """Change a schedule, even if others change it at the same time, and return its new state.

    `change` gets the schedule and the server's time in ms, and returns the new schedule (None to remove it)
    with its due time; or None to leave it unchanged.
    """
    key = scope.keys.schedule(names.name("schedule", name))
    while True:
        kept = yield Command("HGETALL", key)
        fields = dict(zip(kept[::2], kept[1::2], strict=True))
        seconds, microseconds = yield Command("TIME")
        stored = schedule_record.read(name, fields)
        changed = change(stored, int(seconds) * 1000 + int(microseconds) // 1000)
        if changed is None:
            assert stored is not None
            return stored
        new, due = changed
        record = b"" if new is None else schedule_record.written(new)
        once = scope.once()
        step = Script(
            "store_schedule",
            (scope.keys.schedules, key, scope.keys.schedule_bell, once.key),
            (once.token, name, fields.get(b"stamp", b""), scope.token(), record, due or ""),
            writes=True,
        )
        reply = yield step
        scope.free_slot(once, step)
        if reply[0] == b"done":
            if new is None:
                assert stored is not None
                return stored
            return (
                (yield from _shown(scope, name))
                if stored is not None
                else replace(new, due=float(due) / 1000 if due else None)
            )


def _set_paused(scope: Scope, name: str, *, paused: bool) -> Op[ScheduleState]:
    def change(stored: ScheduleState | None, now: int) -> tuple[ScheduleState, str | None] | None:
        if stored is None:
            raise _missing(name)
        if stored.paused == paused:
            return None
        new = replace(stored, paused=paused)
        return new, None if paused else schedule_record.due_text(new, now)

    return (yield from _changed(scope, name, change))


def _removed(scope: Scope, name: str) -> Op[None]:
    def change(stored: ScheduleState | None, _now: int) -> tuple[None, None]:
        if stored is None:
            raise _missing(name)
        return None, None

    yield from _changed(scope, name, change)


def _synced(scope: Scope, definitions: list[Definition], owner: str) -> Op[Synced]:
    for definition in definitions:
        # Check all definitions before the first change.
        schedule_record.checked(scope, definition)
    declared = {definition.name for definition in definitions}
    if len(declared) < len(definitions):
        raise UsageError("two schedules have one name", hint="give each its own")
    before = {definition.name: definition for definition in (yield from listed(scope))}
    added, changed, removed = [], [], []
    for definition in definitions:
        state = yield from _add(scope, definition, owner)
        if definition.name not in before:
            added.append(definition.name)
        elif state.version != before[definition.name].version:
            changed.append(definition.name)
    for name, old in before.items():
        if (
            old.owner == owner
            and name not in declared
            and (yield from _disowned(scope, name, owner))
        ):
            removed.append(name)
    return Synced(tuple(added), tuple(changed), tuple(removed))


def _disowned(scope: Scope, name: str, owner: str) -> Op[bool]:
    """Remove a schedule if it has this owner; return whether it was removed."""

    def change(stored: ScheduleState | None, _now: int) -> tuple[None, None]:
        if stored is None or stored.owner != owner:
            raise NotFound(f"{owner!r} has no schedule {name!r}")
        return None, None

    try:
        yield from _changed(scope, name, change)
    except NotFound:
        return False
    return True


def _shown(scope: Scope, name: str) -> Op[ScheduleState]:
    kept = yield Command("HGETALL", scope.keys.schedule(names.name("schedule", name)))
    schedule = schedule_record.read(name, dict(zip(kept[::2], kept[1::2], strict=True)))
    if schedule is None:
        raise _missing(name)
    return schedule


def listed(scope: Scope) -> Op[list[ScheduleState]]:
    """Return all schedules, by name."""
    all_names = sorted(map(text, (yield Command("ZRANGE", scope.keys.schedules, 0, -1))))
    schedules = []
    for at in range(0, len(all_names), _AT_ONCE):
        page = all_names[at : at + _AT_ONCE]
        replies = yield Batch([("HGETALL", scope.keys.schedule(name)) for name in page])
        for name, kept in zip(page, replies, strict=True):
            if not isinstance(kept, ServerReply):
                schedule = schedule_record.read(name, dict(zip(kept[::2], kept[1::2], strict=True)))
                schedules += [] if schedule is None else [schedule]
    return schedules


def _missing(name: str) -> NotFound:
    return NotFound(
        f"there is no schedule {name!r}",
        hint="Schedules(bus).list() returns all",
        shell_hint="see 'agentbus schedule list'",
    )
