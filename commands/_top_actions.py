"""Actions of `top --write` after confirmation: pause, halt, replay, purge; announced to all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.client.bus import Bus
from agentbus.commands._format import count, cut
from agentbus.core import names
from agentbus.core.names import word
from agentbus.dashboard import Dashboard, person
from agentbus.queues.ids import writable

if TYPE_CHECKING:
    from agentbus.commands._top_details import ErrorLetters
    from agentbus.core.settings import Settings
    from agentbus.dashboard import QueueRow
    from agentbus.queues.dead_letters import Letter

# Seconds to wait for workers to confirm a pause; meanwhile the view shows no new frames.
_CONFIRM = 2.0
_WHY = "from top"


@dataclass(frozen=True, slots=True)
class Action:
    """An action to confirm: `do` describes it, `act` performs it and returns the result.

    It is confirmed by typing the name `typed`, if there is one.
    """

    do: str
    act: Callable[[Bus], str]
    typed: str = ""


@dataclass(frozen=True, slots=True)
class Naming:
    """An action that needs a name first: `named` returns it, or raises `AgentBusError`."""

    do: str
    named: Callable[[str], Action]


def of_queue(row: QueueRow) -> Action:
    """Pause the queue of a row, or resume it."""
    queue = row.stats.queue
    if row.paused is not None:

        def resume(bus: Bus) -> str:
            had = bus.resume(queue=queue)
            return f"queue {word(queue)} {'resumed' if had else 'was not paused'}"

        return Action(f"resume the queue {word(queue)}", resume)

    def pause(bus: Bus) -> str:
        late = bus.pause(queue=queue, why=_WHY, wait=_CONFIRM).unconfirmed
        return f"queue {word(queue)} paused{_late(late)}"

    return Action(f"pause the queue {word(queue)}", pause)


def of_project(halted: str | None) -> Action:
    """Halt the project, or resume it."""
    if halted is not None:
        return Action(
            "resume the project",
            lambda bus: "project resumed" if bus.resume() else "project was not halted",
        )
    return Action(
        "halt the project: no worker takes new tasks",
        lambda bus: f"project halted{_late(bus.halt(why=_WHY, wait=_CONFIRM).unconfirmed)}",
    )


def of_letter(letter: Letter, to: str | None = None) -> Action:
    """Replay a dead letter, into its own queue or another one."""

    def replay(bus: Bus) -> str:
        queue = bus.queue(letter.queue)
        before = queue.letter(letter.id, group=letter.group).replayed
        said = f"dead letter {letter.id} of {word(letter.queue)}"
        if before is not None:
            return f"{said} was replayed before, as {before}"
        return f"{said} replayed as {queue.replay(letter.id, group=letter.group, to=to)}{_to(to)}"

    return Action(f"replay the dead letter {letter.id} of {word(letter.queue)}{_to(to)}", replay)


def of_letters(queue: str, group: str, to: str | None = None) -> Action:
    """Replay all dead letters of a group, into their own queue or another one."""

    def replay(bus: Bus) -> str:
        done = bus.queue(queue).replay_all(group=group, to=to)
        said = f"{count(len(done), 'dead letter')} of {word(queue)} {word(group)} replayed"
        return f"{said}{_to(to)}"

    return Action(f"replay all dead letters of {word(queue)} {word(group)}{_to(to)}", replay)


def of_error(at: ErrorLetters) -> Action:
    """Replay the dead letters whose errors have one cause."""

    def replay(bus: Bus) -> str:
        dashboard, after, number = Dashboard(bus), None, 0
        while True:
            page = dashboard.replay_error(at.error, queue=at.queue, group=at.group, after=after)
            number, after = number + len(page.tasks), page.after
            if after is None:
                return f"{count(number, 'dead letter')} of {_cause(at)} replayed"

    return Action(f"replay all dead letters of {_cause(at)}", replay)


def purge_error(at: ErrorLetters) -> Action:
    """Delete the dead letters whose errors have one cause."""

    def gone(bus: Bus) -> str:
        dashboard, after, number = Dashboard(bus), None, 0
        while True:
            page = dashboard.purge_error(at.error, queue=at.queue, group=at.group, after=after)
            number, after = number + page.purged, page.after
            if after is None:
                return f"{count(number, 'dead letter')} of {_cause(at)} purged"

    return Action(f"purge all dead letters of {_cause(at)}", gone, at.queue)


def _cause(at: ErrorLetters) -> str:
    return f"{word(at.queue)} {word(at.group)} with {cut(at.error, 60)!r}"


def into(letter: Letter) -> Naming:
    """Replay a dead letter into a queue whose name the person types."""
    said = f"replay the dead letter {letter.id} of {word(letter.queue)} into the queue"
    return Naming(said, lambda name: of_letter(letter, _other(name, letter.queue)))


def all_into(queue: str, group: str) -> Naming:
    """Replay all dead letters of a group into a queue whose name the person types."""
    said = f"replay all dead letters of {word(queue)} {word(group)} into the queue"
    return Naming(said, lambda name: of_letters(queue, group, _other(name, queue)))


def purge(letter: Letter) -> Action:
    """Delete a dead letter."""

    def gone(bus: Bus) -> str:
        done = bus.queue(letter.queue).purge(letter.id, group=letter.group)
        return f"dead letter {letter.id} of {word(letter.queue)} {'purged' if done else 'was gone'}"

    return Action(f"purge the dead letter {letter.id} of {word(letter.queue)}", gone, letter.queue)


def purge_all(queue: str, group: str) -> Action:
    """Delete all dead letters of a group."""

    def gone(bus: Bus) -> str:
        done = bus.queue(queue).purge(group=group)
        return f"{count(done, 'dead letter')} of {word(queue)} {word(group)} purged"

    return Action(f"purge all dead letters of {word(queue)} {word(group)}", gone, queue)


def _other(name: str, queue: str) -> str:
    if names.name("queue", name) != queue:
        writable(name)
    return name


def _to(queue: str | None) -> str:
    return "" if queue is None else f" into {word(queue)}"


def _late(workers: tuple[str, ...]) -> str:
    return f"; {count(len(workers), 'worker')} did not confirm yet" if workers else ""


class Person:
    """The acting person, an agent `human:<name>`; by default the user of the system."""

    def __init__(self, settings: Settings, name: str | None) -> None:
        self._settings = person.acting(settings, name)
        self._bus = Bus(self._settings)

    def act(self, action: Action) -> str:
        """Perform an action, announce it on the channel and in the log, and return the result."""
        done = action.act(self._bus)
        self._bus.speak(done, topic=person.TOPIC)
        person.log(self._settings, "top", action.do, done)
        return done

    def close(self) -> None:
        """Close the connections."""
        self._bus.close()
