"""The fields of the pages' forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agentbus.client.aio import AsyncBus

    WebAction = Callable[[AsyncBus, Mapping[str, str]], Awaitable[str]]


def field(form: Mapping[str, str], name: str) -> str:
    """Return a field of a form. Raises `UsageError` if it is missing or empty."""
    value = form.get(name, "")
    if not value:
        raise UsageError(f"the form lacks {name}", hint="fill it in")
    return value
