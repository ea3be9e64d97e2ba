"""The tasks of a queue by state, as the page of the queue shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import names
from agentbus.core.errors import InvalidName, NotFound
from agentbus.core.readable import cut
from agentbus.core.stream import id_time
from agentbus.dashboard.letter_boxes import first_line
from agentbus.dashboard.web.page import ROWS, PageView

if TYPE_CHECKING:
    from agentbus.dashboard.figures import QueueDetail

# States and their names on the page; `Dashboard.tasks` returns all but the dead tasks.
_TABS = {
    "waiting": "Waiting",
    "running": "Running",
    "retrying": "Retrying",
    "delayed": "Delayed",
    "blocked": "Blocked",
    "dead": "Dead",
    "done": "Done",
}
_PREVIEW = 160
# To list finished tasks takes the server some requests; see `PageView.shared`.
_REST = 40.0


async def tasks_of(view: PageView, found: QueueDetail) -> dict[str, Any]:
    """Return the tasks in the state `state` for the group `group`, after the mark `after`."""
    groups = [one.group for one in found.groups if _is_name(one.group)]
    group = view.param("group") or (
        "default" if "default" in groups else (groups or ["default"])[0]
    )
    state = view.param("state")
    if not state:
        # The stream of the page keeps the state, so that the list does not change while one reads.
        state = view.chosen["state"] = _troubled(found, group)
    if state not in _TABS:
        raise NotFound(f"there is no state {state[:60]!a}", hint="choose one of the page")
    after = view.param("after") or None
    complete = True
    rows: list[dict[str, Any]]
    if state == "dead":
        letters = await view.shared(
            ("letters", found.queue, group, after),
            lambda: view.dashboard.letters(queue=found.queue, group=group, after=after, limit=ROWS),
        )
        rows, after = (
            [
                {"letter": one, "at": id_time(one.id), "said": first_line(one.error)}
                for one in letters.letters
            ],
            letters.after,
        )
    elif state == "done":
        table = await view.shared(
            ("done", found.queue, group),
            lambda: view.dashboard.task_list(
                state=state, queue=found.queue, group=group, limit=ROWS
            ),
            _REST,
        )
        rows, after = [{"row": row} for row in table.rows], None
        complete = table.complete
    else:
        page = await view.shared(
            ("tasks", found.queue, state, group, after),
            lambda: view.dashboard.tasks(found.queue, state, group=group, after=after, limit=ROWS),
        )
        rows = [
            {"task": one, "said": one.error or cut(orjson.dumps(one.payload).decode(), _PREVIEW)}
            for one in page.entries
        ]
        after = page.after
    return {
        "group": group,
        "names": groups,
        "state": state,
        "tabs": [(name, said, _number(found, group, name)) for name, said in _TABS.items()],
        "tasks": rows,
        "complete": complete,
        # When the tasks that run for more than a second began, by their workers' heartbeats.
        "began": {task: at for worker in found.workers for task, at in worker.began.items()},
        "after": after,
    }


def _troubled(found: QueueDetail, group: str) -> str:
    """Return the state with which the page opens: what waits, or else what is wrong or under way."""
    states = ("waiting", "dead", "running", "retrying", "delayed", "blocked")
    return next((one for one in states if _number(found, group, one)), "waiting")


def _is_name(group: str) -> bool:
    """Return whether a group's name is valid for the bus; another program may use other names."""
    try:
        names.name("group", group)
    except InvalidName:
        return False
    return True


def _number(found: QueueDetail, group: str, state: str) -> int | None:
    """Return the number of tasks in a state, from the figures of the group; None if it is not known."""
    if state == "done":
        return None
    for row in found.rows:
        one = row.stats
        if one.group in (group, None):
            return {
                "waiting": one.backlog,
                "running": one.pending,
                "retrying": one.retrying,
                "delayed": one.delayed,
                "blocked": one.blocked,
                "dead": one.dead,
            }[state]
    return 0
