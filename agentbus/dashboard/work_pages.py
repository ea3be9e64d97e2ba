"""The schedules, flows and limits of a project, page by page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.core.names import unescape
from agentbus.core.stream import text
from agentbus.queues.ids import STREAMS, group_names, groups_of
from agentbus.queues.limits import QueueLimit
from agentbus.store.steps import Batch, ServerReply
from agentbus.tasks import flows, limits, schedules

if TYPE_CHECKING:
    from typing import Any

    from agentbus.dashboard.figures import RowRange
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.tasks.flow_record import FlowState
    from agentbus.tasks.schedule_record import ScheduleState

# Maximum numbers of running tasks of a flow whose state is read, of limited queues on a page, of groups
# of one of them, of slots that are compared with the tasks that run, and of keys that are listed.
_FLOW_TASKS, _QUEUES, _GROUPS, _SLOTS, _KEYS = 100, 100, 20, 2_000, 10


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """The requested schedules, those due first before others and paused ones last, and their number."""

    schedules: tuple[ScheduleState, ...]
    matching: int


@dataclass(frozen=True, slots=True)
class FlowPage:
    """The requested flows, running ones first, then those that are kept longest, and the number of all."""

    flows: tuple[FlowState, ...]
    matching: int


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The use of a queue's limits in a group.

    `running` counts the tasks that have a slot, `waiting` those that were put aside until the limits allow
    them. `keys` has both numbers for the values of the limit's field, those with most waiting tasks first.
    """

    group: str
    running: int
    waiting: int
    keys: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class LimitRow:
    """The limits of a queue, and their use in each of its groups."""

    queue: str
    limit: QueueLimit
    uses: tuple[LimitUse, ...]


@dataclass(frozen=True, slots=True)
class LimitPage:
    """The requested limits by queue, and the number of queues that have limits."""

    limits: tuple[LimitRow, ...]
    matching: int


def schedule_page(scope: Scope, rows: RowRange) -> Op[SchedulePage]:
    """Return a page of the schedules whose name or queue contains a text."""
    listed = yield from schedules.listed(scope)
    if rows.match is not None:
        wanted = rows.match.casefold()
        listed = [one for one in listed if wanted in f"{one.name}\n{one.queue}".casefold()]
    listed.sort(key=lambda one: (one.paused, one.due is None, one.due or 0.0, one.name))
    return SchedulePage(tuple(listed[rows.offset :][: rows.limit]), len(listed))


def flow_page(scope: Scope, rows: RowRange) -> Op[FlowPage]:
    """Return a page of the flows."""
    index = scope.keys.flow("")[1]
    last = rows.offset + rows.limit - 1
    asked = Batch([("ZREVRANGE", index, rows.offset, last), ("ZCARD", index)])
    ids, number = yield asked
    if isinstance(ids, ServerReply):
        return FlowPage((), 0)
    found = yield from flows.states(scope, [text(one) for one in ids])
    return FlowPage(tuple(found), number)


def flow(scope: Scope, policies: Policies, name: str) -> Op[FlowState]:
    """Return a flow; of more than 100 tasks that may run, the others are `unknown`. Raises `NotFound`."""
    return flows.shown(scope, policies, name, _FLOW_TASKS)


def limit_page(scope: Scope, rows: RowRange) -> Op[LimitPage]:
    """Return a page of the limits of queues whose name contains a text, with their use now."""
    listed = yield from limits.listed(scope)
    named = [*listed]
    if rows.match is not None:
        named = [one for one in named if rows.match.casefold() in one.casefold()]
    shown: list[LimitRow] = []
    for queue in named[rows.offset :][: min(rows.limit, _QUEUES)]:
        uses = yield from _uses(scope, queue)
        shown.append(LimitRow(queue, listed[queue], uses))
    return LimitPage(tuple(shown), len(named))


def _uses(scope: Scope, queue: str) -> Op[tuple[LimitUse, ...]]:
    streams = yield from groups_of(scope, queue, STREAMS)
    groups = sorted(group_names(streams))[:_GROUPS]
    asked: list[tuple[Any, ...]] = []
    for group in groups:
        slots, waiting, _ = scope.keys.limits(queue, group)
        asked += [("HGETALL", slots), ("ZCARD", waiting), ("ZRANGE", waiting, 0, _SLOTS - 1)]
    replies = (yield Batch(asked)) if asked else []
    uses = []
    for at, group in enumerate(groups):
        flat, number, members = (
            None if isinstance(one, ServerReply) else one for one in replies[3 * at : 3 * at + 3]
        )
        running = yield from _running(scope, queue, group, flat or [])
        waits = Counter(unescape(text(one).partition("\n")[0]) for one in members or ())
        keys = sorted({*running, *waits} - {""}, key=lambda key: (-waits[key], -running[key], key))
        rows = tuple((key, running[key], waits[key]) for key in keys[:_KEYS])
        uses.append(LimitUse(group, running.total(), number or 0, rows))
    return tuple(uses)


def _running(scope: Scope, queue: str, group: str, flat: list[bytes]) -> Op[Counter[str]]:
    """Count the slots by key whose tasks run: others are freed by the next task that asks for one."""
    slots: list[tuple[str, str]] = []
    asked: list[tuple[Any, ...]] = []
    for at in range(0, min(len(flat), 2 * _SLOTS), 2):
        number, _, entry = text(flat[at]).partition(" ")
        head, _, key = text(flat[at + 1]).partition("\n")
        state, _, rest = head.partition(" ")
        if number.isdigit() and 0 < int(number) <= len(STREAMS) and state == "run":
            stream = scope.keys.queue(queue, STREAMS[int(number) - 1])
            asked.append(("XPENDING", stream, group, entry, entry, 1))
            slots.append((rest.partition(" ")[2], unescape(key)))
    replies = (yield Batch(asked)) if asked else []
    return Counter(
        key
        for (consumer, key), reply in zip(slots, replies, strict=True)
        if isinstance(reply, list) and reply and text(reply[0][1]) == consumer
    )
