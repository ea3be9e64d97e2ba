"""The fields of the pages' forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agentbus.client.aio import AsyncBus

    WebAction = Callable[[AsyncBus, Mapping[str, str]], Awaitable[str]]


# Prefix of the names of checkboxes, each with the names of its row as JSON.
PICK = "pick:"


def picked(form: Mapping[str, str], number: int) -> list[list[str]]:
    """Return the selected rows, as lists of `number` names. Raises `UsageError` if there are none."""
    rows = []
    for name in form:
        if name.startswith(PICK):
            try:
                row = orjson.loads(name.removeprefix(PICK))
            except ValueError:
                row = None
            if not isinstance(row, list) or [type(one) for one in row] != [str] * number:
                raise UsageError("a selected row cannot be read", hint="reload the page")
            rows.append(row)
    if not rows:
        raise UsageError("nothing is selected", hint="tick the rows first")
    return rows


def field(form: Mapping[str, str], name: str) -> str:
    """Return a field of a form. Raises `UsageError` if it is missing or empty."""
    value = form.get(name, "")
    if not value:
        raise UsageError(f"the form lacks {name}", hint="fill it in")
    return value
