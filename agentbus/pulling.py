"""Taking tasks by hand, without a worker's loop."""

from __future__ import annotations

import os
import secrets
import socket
import time
import weakref
from typing import TYPE_CHECKING, Any

from agentbus import presence
from agentbus.consuming import Consumption
from agentbus.delivery import Delivery
from agentbus.queue import PRIORITIES
from agentbus.store import Pause
from agentbus.store.trouble import GroupMissing
from agentbus.taken import Taken
from agentbus.verb import Patient

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.bus import Bus
    from agentbus.store import Op


_tokens: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()


def _here(bus: Bus) -> str:
    if _tokens.get(bus, (0, ""))[0] != os.getpid():
        _tokens[bus] = (os.getpid(), secrets.token_hex(4))
    return _tokens[bus][1]


def fetch(bus: Bus, queue: str, *, group: str, count: int, block: float | None) -> list[Delivery]:
    """Take new tasks for a consumer of its own; a malformed one is buried and left out."""
    # One consumer for a bus and a process, or each call would leave another name behind.
    name = f"{socket.gethostname()}:{os.getpid()}:{_here(bus)}"
    policy = bus.policy(queue)
    consumption = Consumption(
        bus.scope, queue, group, name, kept=policy.results, letters_of=policy.dead_letters
    )

    def run(op: Op[Any] | Patient[Any]) -> Any:
        return bus._run("fetch", op)

    def paused() -> bool:
        return run(presence.held(bus.scope, queue, bus.agent)) is not None

    run(consumption.prepare())
    taken = [] if paused() else _due(consumption, run, count)
    until = time.monotonic() + (block or 0.0)
    while not taken and time.monotonic() < until:
        if paused():
            run(_rest(min(0.1, max(0.001, until - time.monotonic()))))
            continue
        # Not for longer than a moment: what was put aside or delayed may fall due meanwhile.
        block = min(0.1, max(0.001, until - time.monotonic()))
        try:
            taken, _ = run(Patient(consumption.take(count, block), block))
        except GroupMissing:
            return []
        taken = taken or _due(consumption, run, count)
    if taken and paused():
        # It was paused meanwhile: what was published after that must not be handed out.
        for task in taken:
            task.attempt -= 1
            run(consumption.retry(task, 0.0))
        return []
    deliveries = []
    for task in taken:
        if task.error is None:
            deliveries.append(Delivery(consumption, run, task))
        else:
            run(consumption.bury(task, f"the entry is malformed: {task.error}"))
    return deliveries


def _due(consumption: Consumption, run: Callable[[Any], Any], count: int) -> list[Taken]:
    """Take what is to be delivered again, each attempt counted, then new tasks."""
    run(consumption.promote())
    taken: list[Taken] = []
    for priority in PRIORITIES:
        tasks, _, _ = (
            run(consumption.again(priority, count - len(taken)))
            if len(taken) < count
            else ([], None, 0)
        )
        for task in tasks:
            task.attempt = run(consumption.begin(task))
        taken += [task for task in tasks if task.attempt]
    if len(taken) < count:
        _, found, _ = run(consumption.turn({}, 0.0, count - len(taken)))
        taken += found
    return taken


def _rest(seconds: float) -> Op[None]:
    yield Pause(seconds)
