"""Torture of flags: many contend for each, and a fenced resource knows who held it when."""

from __future__ import annotations

from collections.abc import Iterator

from agentbus.torture.order import Mode, Order
from agentbus.torture.verdict import Verdict


def _torture(order: Order) -> Iterator[Verdict]:
    # Loaded here: the contenders load this package, too, and have no use for what torments them.
    from agentbus.torture.flags.running import run

    yield run(order)


MODE = Mode(
    "flags",
    "rounds in which many race for a flag, with holders killed and frozen in their sections",
    {
        "check_then_wait": "looks at the flag, then waits for news: the news in between is missed",
        "unfenced_lease": "SET NX with an expiry, ended by a DEL, and nothing that the resource can check",
        "check_then_set": "looks whether the flag is free, then takes it",
    },
    _torture,
)
