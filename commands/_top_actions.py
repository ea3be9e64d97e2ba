"""What `top --write` does after it has asked: pause, resume, halt, replay; as a person, and said to all."""

from __future__ import annotations

from agentbus.commands._format import count
from agentbus.core.names import word
from agentbus.core.record import Record
from agentbus.dashboard import person

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.client.bus import Bus
    from agentbus.core.settings import Settings
    from agentbus.dashboard import QueueRow
    from agentbus.queues.dead_letters import Letter

# Seconds to wait for workers to confirm a pause: the view goes on meanwhile without new frames.
_CONFIRM = 2.0
_WHY = "from top"


class Action(Record):
    """An action to confirm: `do` is what it does, `act` does it and returns what was done."""

    do: str
    act: Callable[[Bus], str]


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


def of_letter(one: Letter) -> Action:
    """Replay a dead letter."""

    def replay(bus: Bus) -> str:
        task = bus.queue(one.queue).replay(one.id, group=one.group)
        return f"dead letter {one.id} of {word(one.queue)} replayed as {task}"

    return Action(f"replay the dead letter {one.id} of {word(one.queue)}", replay)


def of_letters(queue: str, group: str) -> Action:
    """Replay all dead letters of a group."""

    def replay(bus: Bus) -> str:
        done = bus.queue(queue).replay_all(group=group)
        return f"{count(len(done), 'dead letter')} of {word(queue)} {word(group)} replayed"

    return Action(f"replay all dead letters of {word(queue)} {word(group)}", replay)


def _late(workers: tuple[str, ...]) -> str:
    return f"; {count(len(workers), 'worker')} did not confirm yet" if workers else ""


class Person:
    """The person at the keys, an agent `human:<name>`; by default the user of the system."""

    def __init__(self, settings: Settings, name: str | None) -> None:
        from agentbus.client.bus import Bus

        self._settings = person.acting(settings, name)
        self._bus = Bus(self._settings)

    def act(self, action: Action) -> str:
        """Do it, say so on the channel and in the log, and return what was done."""
        done = action.act(self._bus)
        self._bus.speak(done, topic=person.TOPIC)
        person.log(self._settings, "top", action.do, done)
        return done

    def close(self) -> None:
        """Close the connections."""
        self._bus.close()
