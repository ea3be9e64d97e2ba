"""Killed with -9 at every step: what is committed holds, and the next process does the rest."""

from __future__ import annotations

import multiprocessing
import signal

import pytest

from agentbus.errors import ConfigError
from agentbus.events import Relay, kill_points
from tests.events import killed
from tests.events.shop import effects, entries, expire, rows, send, uuids
from tests.tiers import nightly

# Forks of a process that has imported all already, which takes longest.
FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["tests.events.killed"])

SENT = ["a", "b", "poison", "d", "e", "f"]
ACTED = ["a", "b", "d", "e", "f"]


@pytest.fixture
def run(database, real_url, project, tmp_path):
    """Return a function that runs a role to its end, or to the step at which it is killed."""

    def _run(role: str, kill: str | None = None) -> int:
        said = tmp_path / "said"
        words = (str(said), kill, role, database, real_url, project)
        # One that hangs must not be waited for when the tests end.
        process = FRESH.Process(target=killed.apart, args=words, daemon=True)
        process.start()
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL), said.read_text()
        return process.exitcode

    return _run


def holds(ledger) -> None:
    """Assert what must hold whenever a process ends."""
    parked = {row.event_uuid for row in rows(ledger, "parked")}
    processed = rows(ledger, "processed")
    acted = sorted({row.event_uuid for row in processed} - parked)
    assert effects(ledger) == acted
    checkpoint = [
        (row.checkpoint_ms, row.checkpoint_seq)
        for row in rows(ledger, "lease")
        if row.role == "welcome"
    ]
    last = max(((row.position_ms, row.position_seq) for row in processed), default=(0, 0))
    assert checkpoint in ([last], []) or last == (0, 0)


def first_of(names: list[str]) -> list[str]:
    """Return names without repetitions."""
    return list(dict.fromkeys(names))


@pytest.mark.parametrize("step", kill_points.RELAY)
def test_a_relay_that_is_killed_at_a_step_loses_nothing(ledger, run, bus, valkey, project, step):
    send(ledger, *SENT)

    assert run("relay", step) == -signal.SIGKILL

    published = entries(valkey, project)
    marked = [row for row in rows(ledger, "outbox") if row.position_ms is not None]
    ids = {entry["id"] for entry in published}
    assert {f"{row.position_ms}-{row.position_seq}" for row in marked} <= ids
    expire(ledger)
    send(ledger, "late")
    relay = Relay(ledger, bus)
    relay.run_once()
    relay.close()
    assert first_of(uuids(valkey, project)) == [*SENT, "late"]
    assert run("consumer") == 0
    holds(ledger)
    assert effects(ledger) == sorted([*ACTED, "late"])


@pytest.mark.parametrize(
    ("role", "database"),
    [
        ("consumer", "postgresql"),
        ("batch", "sqlite"),
        nightly("consumer", "sqlite"),
        nightly("batch", "postgresql"),
    ],
    indirect=["database"],
)
@pytest.mark.parametrize(
    "step",
    [
        *("consumer.leased", "consumer.read:2", "consumer.deduped:2", "consumer.handled:2"),
        *("consumer.checkpointed:2", "consumer.committed:2", "consumer.parked"),
    ],
)
def test_a_consumer_that_is_killed_at_a_step_acts_exactly_once(ledger, run, bus, role, step):
    assert step.partition(":")[0] in kill_points.CONSUMER
    send(ledger, *SENT)
    relay = Relay(ledger, bus)
    relay.run_once()
    relay.close()

    assert run(role, step) == -signal.SIGKILL

    holds(ledger)
    expire(ledger)
    assert run(role) == 0
    holds(ledger)
    assert effects(ledger) == ACTED
    assert [row.event_uuid for row in rows(ledger, "parked")] == ["poison"]
    assert sorted(row.event_uuid for row in rows(ledger, "processed")) == sorted(SENT)


def test_every_step_has_its_test():
    assert set(kill_points.CONSUMER) == {
        *("consumer.leased", "consumer.read", "consumer.deduped", "consumer.handled"),
        *("consumer.checkpointed", "consumer.committed", "consumer.parked"),
    }


def test_without_the_variable_no_step_does_anything():
    assert kill_points.hook()("consumer.leased") is None


def test_a_step_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("AGENTBUS_TEST_KILL", "consumer.nowhere")

    with pytest.raises(ConfigError):
        kill_points.hook()
