"""Actions of the pages about dead letters and tasks."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from agentbus.core.errors import NotFound, Refused, UsageError
from agentbus.core.names import word
from agentbus.core.readable import count, cut
from agentbus.dashboard.dashboard import Dashboard
from agentbus.dashboard.web.forms import field, picked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.client.aio import AsyncBus
    from agentbus.dashboard.web.forms import WebAction
    from agentbus.store.verb import Awaiting

# Seconds for which one form replays or purges; the next form continues.
_SECONDS = 10.0


async def _replay(bus: AsyncBus, form: Mapping[str, str]) -> str:
    queue, group, letter = field(form, "queue"), field(form, "group"), field(form, "id")
    letters, to = bus.queue(queue), form.get("to") or None
    said = f"dead letter {letter} of {word(queue)}"
    before = (await letters.letter(letter, group=group)).replayed
    if before is not None:
        return f"{said} was replayed before, as {before}"
    return f"{said} replayed as {await letters.replay(letter, group=group, to=to)}{_into(to)}"


async def _purge(bus: AsyncBus, form: Mapping[str, str]) -> str:
    queue, letter = field(form, "queue"), field(form, "id")
    _typed(form, queue)
    gone = await bus.queue(queue).purge(letter, group=field(form, "group"))
    return f"dead letter {letter} of {word(queue)} {'purged' if gone else 'was gone'}"


async def _replay_error(bus: AsyncBus, form: Mapping[str, str]) -> str:
    """Replay all letters with an error, for at most ten seconds."""
    dashboard: Dashboard[Awaiting] = Dashboard(bus)
    to = form.get("to") or None
    replayed, after, ends = 0, None, time.monotonic() + _SECONDS
    while True:
        page = await dashboard.replay_error(
            form.get("error", ""),
            queue=form.get("queue") or None,
            group=form.get("group") or None,
            to=to,
            after=after,
        )
        replayed, after = replayed + len(page.tasks), page.after
        if after is None or time.monotonic() > ends:
            break
    return f"{count(replayed, 'dead letter')}{_about(form)} replayed{_into(to)}{_rest(after)}"


async def _purge_error(bus: AsyncBus, form: Mapping[str, str]) -> str:
    """Purge all letters with an error, for at most ten seconds."""
    _typed(form, form.get("queue") or bus.project)
    dashboard: Dashboard[Awaiting] = Dashboard(bus)
    purged, after, ends = 0, None, time.monotonic() + _SECONDS
    while True:
        page = await dashboard.purge_error(
            form.get("error", ""),
            queue=form.get("queue") or None,
            group=form.get("group") or None,
            after=after,
        )
        purged, after = purged + page.purged, page.after
        if after is None or time.monotonic() > ends:
            break
    return f"{count(purged, 'dead letter')}{_about(form)} purged{_rest(after)}"


async def _replay_selected(bus: AsyncBus, form: Mapping[str, str]) -> str:
    """Replay the selected letters; those that are gone or were replayed before are left alone."""
    replayed, rows = 0, picked(form, 3)
    for queue, group, letter in rows:
        letters = bus.queue(queue)
        with contextlib.suppress(NotFound):
            if (await letters.letter(letter, group=group)).replayed is None:
                await letters.replay(letter, group=group)
                replayed += 1
    return f"{count(replayed, 'selected dead letter')} replayed{_left(len(rows) - replayed)}"


async def _purge_selected(bus: AsyncBus, form: Mapping[str, str]) -> str:
    """Purge the selected letters, of one queue or several."""
    rows = picked(form, 3)
    queues = {queue for queue, _, _ in rows}
    _typed(
        form, bus.project if form.get("typed") == bus.project or len(queues) > 1 else queues.pop()
    )
    by_place: dict[tuple[str, str], list[str]] = {}
    for queue, group, letter in rows:
        by_place.setdefault((queue, group), []).append(letter)
    purged = 0
    for (queue, group), letters in by_place.items():
        purged += await bus.queue(queue).purge(*letters, group=group)
    return f"{count(purged, 'selected dead letter')} purged{_left(len(rows) - purged)}"


async def _cancel_selected(bus: AsyncBus, form: Mapping[str, str]) -> str:
    """Cancel the selected tasks; those that have ended meanwhile are left alone."""
    cancelled, rows = 0, picked(form, 1)
    for (task,) in rows:
        with contextlib.suppress(NotFound, Refused):
            await bus.cancel(task)
            cancelled += 1
    return f"{count(cancelled, 'selected task')} cancelled{_left(len(rows) - cancelled)}"


def _left(number: int) -> str:
    return f"; {number} left alone, which had ended or changed" if number else ""


async def _cancel(bus: AsyncBus, form: Mapping[str, str]) -> str:
    done = await bus.cancel(field(form, "id"))
    return f"task {done.id} {done.state}"


def _typed(form: Mapping[str, str], name: str) -> None:
    """Raise `UsageError` unless the person has typed the name as confirmation."""
    if form.get("typed", "") != name:
        raise UsageError(f"nothing was purged: type {name!r} to purge", hint="type the name")


def _about(form: Mapping[str, str]) -> str:
    queue = form.get("queue", "")
    said = f" of {word(queue)}" if queue else ""
    return f"{said} with the error {cut(form.get('error', ''), 200)!r}"


def _into(queue: str | None) -> str:
    return "" if queue is None else f" into {word(queue)}"


def _rest(after: str | None) -> str:
    return "" if after is None else "; more are left: do it again to go on"


ACTIONS: dict[str, WebAction] = {
    "letter.replay": _replay,
    "letter.purge": _purge,
    "letters.replay": _replay_error,
    "letters.purge": _purge_error,
    "letters.replay_selected": _replay_selected,
    "letters.purge_selected": _purge_selected,
    "task.cancel": _cancel,
    "tasks.cancel_selected": _cancel_selected,
}
