"""Prints one part of an answer that has several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError
from agentbus.store.failures import WrongType

if TYPE_CHECKING:
    from agentbus.commands._declare import Call


@contextmanager
def part(call: Call, *others: type[AgentBusError]) -> Iterator[None]:
    """Print a part: a key that another program wrote costs a line on stderr, not the other parts.

    So do errors of the `others`.
    """
    known: tuple[type[AgentBusError], ...] = (WrongType, *others)
    try:
        yield
    except known as error:
        call.out.warn(error.message)
