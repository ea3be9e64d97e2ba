"""Names from the bus that complete a parameter's value."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agentbus.admin import projects
from agentbus.client.bus import Bus
from agentbus.core.errors import BackendUnavailable
from agentbus.core.settings import resolve
from agentbus.tasks import Schedules
from agentbus.tasks.flows import Flows

if TYPE_CHECKING:
    import click

    # Values, each with a description or None.
    Found = Iterable[tuple[str, str | None]]

# Seconds to wait for the server, and for the whole completion: the user is waiting at the shell.
_DEADLINE = 0.5
_PATIENCE = 1.0
# Maximum number of values to offer.
MOST = 200
# Maximum number of keys to search for projects, which takes about 50 ms.
_EXAMINED = 100_000


def on_the_bus(
    kind: str, ctx: click.Context, given: dict[str, Any]
) -> list[tuple[str, str | None]]:
    """Return the values of a kind on the bus, if the bus replies in time."""
    values: list[tuple[str, str | None]] = []

    def ask() -> None:
        with contextlib.suppress(Exception), _bus(ctx) as bus:
            values.extend(_VALUES[kind](bus, given))

    # Use a thread: nothing else can end the look-up of a host name.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    return [] if asking.is_alive() else values


def _bus(ctx: click.Context) -> Bus:
    """Return the bus of the line's settings; never starts the embedded server."""
    above = {} if ctx.parent is None else ctx.parent.params
    flags: dict[str, Any] = {
        name: ctx.params.get(name) or above.get(name)
        for name in ("agent", "project", "url", "config")
    }
    settings = resolve({**flags, "deadline": _DEADLINE})
    if settings.url is not None and settings.url.startswith("memory:"):
        raise BackendUnavailable("another process's memory cannot be read")
    bus = Bus(settings)
    bus.backend.revive = None
    return bus


def _named(names: Iterable[str]) -> Found:
    return [(name, None) for name in sorted(set(names))]


def _letters(bus: Bus, given: dict[str, Any]) -> Found:
    letters = bus.queue(given["queue"]).dead_letters(given["group"] or "default", limit=MOST)
    return [(letter.id, letter.error) for letter in letters]


def _projects(bus: Bus, _given: dict[str, Any]) -> Found:
    page = bus.runner.run(projects.listed(bus.scope, most=_EXAMINED))
    return [(project.project, None) for project in page.projects]


def _schedules(bus: Bus) -> Found:
    return _named(schedule.name for schedule in Schedules(bus).list())


def _flows(bus: Bus) -> Found:
    return [(flow.id, flow.state) for flow in Flows(bus).list()]


_VALUES: dict[str, Callable[[Bus, dict[str, Any]], Found]] = {
    "agent": lambda bus, _: _named(one.agent_id for one in bus.agents()),
    "flag": lambda bus, _: [(one.flag, one.state) for one in bus.flags()],
    "flow": lambda bus, _: _flows(bus),
    "group": lambda bus, given: _named(one.group for one in bus.queue(given["queue"]).groups()),
    "letter": _letters,
    "note": lambda bus, _: _named(note.key for note in bus.list_(latest=MOST)),
    "project": _projects,
    "queue": lambda bus, _: _named(bus.queues()),
    "schedule": lambda bus, _: _schedules(bus),
    "tag": lambda bus, _: _named(t for note in bus.list_(latest=MOST) for t in note.tags),
    "topic": lambda bus, _: _named(topic.topic for topic in bus.topics()),
    "worker": lambda bus, _: [
        (one.worker, f"{one.agent_id}, {one.queue}") for one in bus.workers()
    ],
}
