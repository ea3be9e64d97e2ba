"""Events under torture in small; those who deserve it are caught, and what judges them is right."""

from __future__ import annotations

import pathlib

import pytest
import sqlalchemy as sa

from agentbus.errors import ConfigError
from tests.tiers import nightly
from tests.torture import nemesis
from tests.torture.events.checks import CHECKS, CommittedRow, EventsEvidence
from tests.torture.events.database import Database, opened
from tests.torture.events.plan import DATABASE, EventsPlan, planned
from tests.torture.events.postgres import Postgres
from tests.torture.events.producer import begun
from tests.torture.events.workload import Shop, tortured
from tests.torture.history import INVOKE, UNKNOWN, Scribe
from tests.torture.mode import Trial
from tests.torture.modes import MODES
from tests.torture.server import Server
from tests.torture.verdict import found_by

FAULTS = {
    nemesis.SERVER_KILL: 2,
    nemesis.FREEZE: 1,
    nemesis.CUT: 2,
    nemesis.HALF_OPEN: 1,
    nemesis.LATENCY: 1,
    nemesis.LOST_REPLY: 2,
    nemesis.LOST_REQUEST: 1,
    nemesis.WIPE: 1,
    nemesis.SLOW_DISK: 1,
    nemesis.FULL_MEMORY: 1,
}
SQLITE = EventsPlan(200, {**FAULTS, nemesis.KILL: 6}, 0.2, producers=2, relays=1, each=2, lease=1.0)
POSTGRESQL = EventsPlan(
    *(800, {**FAULTS, nemesis.KILL: 16, DATABASE: 1}, 0.1),
    producers=2,
    relays=2,
    each=1,
    lease=1.0,
)
# Each process that is killed is followed by one that imports everything again, which takes longest.
FEWER_DEATHS = POSTGRESQL._replace(events=250, faults={**FAULTS, nemesis.KILL: 5, DATABASE: 1})


@pytest.fixture
def order(tmp_path: pathlib.Path) -> Trial:
    return Trial(seed=5, minutes=1, place=tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plan", "database"),
    [
        nightly(FEWER_DEATHS, "postgresql"),
        nightly(POSTGRESQL, "postgresql"),
        nightly(SQLITE, "sqlite"),
    ],
    ids=["fewer deaths", "postgresql", "sqlite"],
)
def test_every_event_has_its_effect_once_whatever_goes_wrong(order, plan, database):
    found = tortured(plan, order, database)

    assert found.violations == {}, found
    assert found.too_few == {}, found
    assert found.passed
    assert found.figures["events"] == plan.events
    assert 0 < found.figures["rolled_back"] < plan.events
    assert found.figures["came_again"] > 0


@pytest.mark.parametrize(
    ("control", "harm"),
    [
        pytest.param("poll_by_id", "lost", marks=pytest.mark.slow),
        pytest.param("mark_first", "lost", marks=pytest.mark.slow),
        ("check_then_act", "doubled"),
        nightly("unfenced_lease", "doubled"),
    ],
)
def test_a_wrong_part_is_caught(order, control, harm):
    (found,) = MODES["events"].torture(order._replace(control=control))

    assert harm in found.violations, found
    assert found.passed
    assert (found.control, found.too_few) == (control, {})


@pytest.mark.slow
def test_what_sqlite_cannot_do_wrong_is_done_once_on_postgresql(order):
    both = order._replace(control="poll_by_id", databases=("sqlite", "postgresql"))

    (found,) = MODES["events"].torture(both)

    assert found.figures["database"] == "postgresql"
    assert list(found.violations) == ["lost"]


@pytest.mark.slow
def test_a_server_and_a_database_of_others_are_left_as_they_were(order, tmp_path):
    wanted = {nemesis.KILL: 1, nemesis.CUT: 1, nemesis.WIPE: 1, DATABASE: 1}
    plan = EventsPlan(40, wanted, 0.1, producers=1, relays=1, each=1, reads=("shelf",), lease=1.0)
    with Server(tmp_path / "theirs") as server, Postgres(fsync="off") as database:
        server.ask("SET", "theirs", "kept")

        found = tortured(plan, order._replace(url=server.tcp_url), database.url)

        assert found.passed, found
        assert found.faults == {nemesis.KILL: 1, nemesis.CUT: 1}
        assert found.figures["came_again"] > 0
        assert server.ask("KEYS", "*") == [b"theirs"]
        assert "shutdown" not in server.log().lower()
        left = Database(database.url)
        assert (
            left.ask(sa.text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")) == []
        )
        left.close()


def test_what_comes_once_more_does_so_after_the_database_was_restarted(order, tmp_path):
    plan = EventsPlan(*(0, {}, 0.1), producers=0, relays=0, each=0, reads=("shelf",), lease=1.0)
    with (
        Server(tmp_path / "server") as server,
        opened("postgresql", tmp_path, wal=False) as database,
        Shop(plan, order, database, server) as shop,
    ):
        assert database.server is not None
        shop.go_through()
        database.server.stop()
        database.server.start()

        shop.go_through()

        assert shop.ended == []


def test_a_database_that_holds_events_is_refused(tmp_path):
    found = Database(f"sqlite:///{tmp_path / 'theirs.db'}")
    found.ledger.create()

    with pytest.raises(ConfigError, match=r"holds tables already: .*agentbus_outbox"):
        found.make(wal=False)

    assert found.ledger.missing() == []
    found.close()


def test_a_process_that_takes_anothers_place_goes_on_behind_what_it_began(tmp_path):
    history = tmp_path / "producer-0"
    assert begun(history) == 0
    scribe = Scribe(history)
    for number in range(3):
        scribe.note("send", INVOKE, number=number, uuid=str(number))
    scribe.note("send", UNKNOWN, uuid="2", error="cut off")

    assert begun(history) == 3


def test_every_control_is_tried():
    assert set(MODES["events"].controls) == {
        "poll_by_id",
        "mark_first",
        "check_then_act",
        "unfenced_lease",
    }


def test_ten_minutes_are_what_a_release_wants(order):
    plan = planned(order._replace(minutes=10))

    assert plan.events == 20_000
    assert plan.faults[nemesis.KILL] == 500
    assert plan.faults[nemesis.SERVER_KILL] == plan.faults[nemesis.FREEZE] == 50
    assert plan.faults[nemesis.CUT] + plan.faults[nemesis.HALF_OPEN] == 100
    assert plan.faults[nemesis.WIPE] == 10


def test_a_short_one_has_each_fault_at_least_once(order):
    assert min(planned(order._replace(minutes=0.01)).faults.values()) == 1


# -- the judge ----------------------------------------------------------------------------------

SOUND = EventsEvidence(
    {"mail": "orders", "shelf": "stock"},
    [
        CommittedRow("a", "orders", "p", 0, 1),
        CommittedRow("b", "orders", "q", 0, 2),
        CommittedRow("c", "stock", "p", 1, None),
        CommittedRow("d", "stock", "p", 2, None),
    ],
    {"mail": ["a", "b"], "shelf": ["c", "d"]},
)


def test_what_is_sound_is_not_blamed():
    assert found_by(SOUND, CHECKS) == {}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"effects": {"mail": ["a"], "shelf": ["c", "d"]}}, "lost"),
        ({"effects": {"mail": ["a", "b"]}}, "lost"),
        ({"effects": {"mail": ["a", "b", "a"], "shelf": ["c", "d"]}}, "doubled"),
        ({"effects": {"mail": ["a", "b", "x"], "shelf": ["c", "d"]}}, "rolled_back_and_seen"),
        ({"effects": {"mail": ["a", "b", "c"], "shelf": ["c", "d"]}}, "rolled_back_and_seen"),
        ({"effects": {"mail": ["b", "a"], "shelf": ["c", "d"]}}, "out_of_order"),
        ({"effects": {"mail": ["a", "b"], "shelf": ["d", "c"]}}, "out_of_order"),
        ({"acknowledged": ["a", "x"]}, "forgotten"),
        ({"taken_back": ["a", "x"]}, "brought_back"),
    ],
)
def test_each_kind_of_harm_is_told_by_its_name(changed, found):
    assert list(found_by(SOUND._replace(**changed), CHECKS)) == [found]
