"""Dead letters: grouped by error, the letters of one error, and one letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.errors import NotFound
from agentbus.core.names import word
from agentbus.core.readable import cut
from agentbus.core.stream import id_time
from agentbus.dashboard.letter_boxes import first_line
from agentbus.dashboard.web.page import ROWS, PageView, TextFile, WebPage
from agentbus.dashboard.web.pages.task import as_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.dashboard.error_groups import ErrorGroup
    from agentbus.queues.dead_letters import Letter


# To group thousands of letters takes the server a tenth of a second; see `PageView.shared`.
_REST = 40.0
# Maximum characters of a payload in a list.
_PREVIEW = 120


_ORDERS: dict[str, Callable[[ErrorGroup], Any]] = {
    "error": lambda one: one.error,
    "letters": lambda one: one.letters,
    "replayed": lambda one: one.replayed,
    "newest": lambda one: one.newest,
    "oldest": lambda one: one.oldest,
}


async def load(view: PageView) -> dict[str, Any]:
    """Return the groups of letters by error, of the project, or of `queue` and `group`."""
    of = _of(view)
    queue, group = of["queue"], of["group"]
    report = await view.shared(
        ("errors", queue, group),
        lambda: view.dashboard.errors(queue=queue, group=group, limit=ROWS),
        _REST,
    )
    groups = view.rows.sorted(report.groups, _ORDERS)
    return {"report": report, "groups": groups, "of": of, "where": _where(of)}


async def load_error(view: PageView) -> dict[str, Any]:
    """Return the letters whose error begins with the line `error`, after the mark `after`."""
    # An empty `error` selects the letters without an error.
    of, error = _of(view), view.param("error")
    queue, group, after = of["queue"], of["group"], view.param("after") or None
    page = await view.dashboard.letters(error, queue=queue, group=group, after=after, limit=ROWS)
    report = await view.dashboard.errors(queue=queue, group=group, error=error, limit=1)
    return {
        "error": error,
        "letters": [
            (one, id_time(one.id), cut(orjson.dumps(one.payload).decode(), _PREVIEW))
            for one in page.letters
        ],
        "after": page.after,
        "group": report.groups[0] if report.groups else None,
        "complete": report.complete,
        "of": of,
        "where": _where(of),
        # The person types this name to confirm a purge.
        "name": queue or view.project,
    }


async def load_letter(view: PageView) -> dict[str, Any]:
    """Return the letter `id` of `queue` and `group`."""
    one = await _letter(view)
    fields = {**(one.fields or {})}
    return {
        "title": f"Dead letter {one.id}",
        "letter": one,
        "payload": as_json(one.payload),
        "meta": fields.get("meta", ""),
        "priority": fields.get("priority", "normal"),
        "error": first_line(one.error),
    }


async def payload(view: PageView) -> tuple[str, str]:
    """Return a letter's payload."""
    one = await _letter(view)
    return f"payload {one.id}", as_json(one.payload) + "\n"


async def traceback(view: PageView) -> tuple[str, str]:
    """Return a letter's error with its traceback."""
    one = await _letter(view)
    return f"error {one.id}", f"{one.error}\n\n{one.traceback}"


async def _letter(view: PageView) -> Letter:
    queue, letter = view.param("queue"), view.param("id")
    if not queue or not letter:
        raise NotFound("the address names no dead letter", hint="choose one of the list")
    return await view.bus.queue(queue).letter(letter, group=view.param("group", "default"))


def _of(view: PageView) -> dict[str, str | None]:
    return {name: view.param(name) or None for name in ("queue", "group")}


def _where(of: dict[str, str | None]) -> str:
    queue, group = of["queue"], of["group"]
    said = f" of the queue {word(queue)}" if queue else ""
    return said + (f", group {word(group)}" if group else "")


PAGE = WebPage("letters", "Dead letters", load, live=("groups",))
ERROR = WebPage("letters-error", "Dead letters with this error", load_error, under="letters")
ONE = WebPage("letter", "Dead letter", load_letter, under="letters")
PAYLOAD = TextFile("letter-payload", payload)
TRACEBACK = TextFile("letter-error", traceback)
