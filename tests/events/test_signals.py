"""A relay and a consumer in a script end after their round at SIGTERM and SIGINT."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from agentbus.core import signals
from agentbus.events import Consumer, Ledger, Relay
from tests.events.shop import send

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@pytest.fixture(autouse=True)
def first_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal has ended a run in this process yet."""
    monkeypatch.setattr(signals, "_ended", False)


@BOTH
def test_a_relay_in_the_main_thread_ends_at_a_signal(
    ledger: Ledger, relay: Relay, number: signal.Signals
) -> None:
    send(ledger, "a")
    rounds: list[int] = []

    def on_round(published: int) -> None:
        rounds.append(published)
        signal.raise_signal(number)

    relay.run(on_round)

    assert rounds == [1]


@BOTH
def test_a_consumer_in_the_main_thread_ends_at_a_signal(
    ledger: Ledger, relay: Relay, consume: Callable[..., Consumer], number: signal.Signals
) -> None:
    send(ledger, "a")
    relay.run_once()
    rounds: list[int] = []

    def on_round(handled: int) -> None:
        rounds.append(handled)
        signal.raise_signal(number)

    consume().run(on_round)

    assert rounds == [1]
