"""Kill points: named steps of relays and consumers at which tests kill the process."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from agentbus.core import settings
from agentbus.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

RELAY = ("relay.leased", "relay.read", "relay.added", "relay.marked")
CONSUMER = (
    *("consumer.leased", "consumer.read", "consumer.deduped", "consumer.handled"),
    *("consumer.checkpointed", "consumer.committed", "consumer.parked"),
)


def hook() -> Callable[[str], None]:
    """Return the function that relays and consumers call at each step; it does nothing without a test.

    AGENTBUS_TEST_KILL is the step, optionally followed by a colon and the number of the pass that
    kills.
    """
    wanted = settings.variable("AGENTBUS_TEST_KILL")
    return (lambda _step: None) if wanted is None else killing(wanted)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killing(wanted: str, kill: Callable[[], None] = _kill) -> Callable[[str], None]:
    """Return a function that kills this process at a step, given as for `hook`. Raises `ConfigError`."""
    step, _, nth = wanted.partition(":")
    left = int(nth) if nth.isdigit() else 1
    if step not in (*RELAY, *CONSUMER):
        raise ConfigError(
            f"AGENTBUS_TEST_KILL is not a step ({step!a})", hint="it is for tests: unset it"
        )

    def reach(reached: str) -> None:
        nonlocal left
        if reached == step:
            left -= 1
            if left == 0:
                kill()

    return reach
