"""Workers that are killed, frozen and cut off, and a server that dies: no task is lost, none wronged.

`scripts/torture work` runs the same with more of everything.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.servers import Server
from tests.tiers import nightly
from tests.torture import nemesis
from tests.torture.mode import Trial
from tests.torture.modes import MODES
from tests.torture.nemesis import FREEZE, KILL, SERVER_KILL
from tests.torture.verdict import Verdict, found_by
from tests.torture.work.checks import NOTHING, attempts_unlogged
from tests.torture.work.faulty import FAULTS
from tests.torture.work.liveness import LIVENESS
from tests.torture.work.loads import LOADS, MIXED as MIXED_LOADS, MixedLoad, QueueLoad
from tests.torture.work.mixed import MixedWork
from tests.torture.work.mixed_checks import MIXED
from tests.torture.work.plan import planned
from tests.torture.work.under_load import QueueUnderLoad
from tests.torture.workload import server_of


def judged(order: Trial) -> Verdict:
    """Run an order, say what happened, and return the verdict; the histories stay where they are."""
    (verdict,) = MODES["work"].torture(order)
    sys.stdout.write(f"{dict(verdict.faults)}\n{dict(verdict.figures)}\n{verdict.place}\n")
    return verdict


@pytest.mark.parametrize(("minutes", "kills"), [(0.1, 10), nightly(0.2, 20)])
def test_no_task_is_lost_or_wronged_whatever_dies(
    tmp_path: pathlib.Path, minutes: float, kills: int
) -> None:
    # given tasks of every priority, some late, some failing at first, and some that kill their worker
    order = Trial(seed=7, minutes=minutes, place=tmp_path)

    # when six processes share them while they, the publisher, the server and connections die or freeze
    verdict = judged(order)

    # then all is done or buried, only poison is buried, once, and no stale acknowledgement counted
    assert (verdict.violations, verdict.too_few) == ({}, {})
    assert verdict.passed
    assert verdict.faults[KILL] == kills
    assert verdict.figures["attempts logged"] > verdict.figures["tasks done"]
    assert verdict.figures["tasks accepted"] + verdict.figures["publications unsure"] >= 102 * kills


@pytest.mark.slow
def test_a_server_that_is_not_ours_is_spared_and_left_as_it_was(
    own_server: Server, tmp_path: pathlib.Path
) -> None:
    own_server.ask("SELECT", 0)
    own_server.ask("SET", "theirs", "1")
    pid = own_server.process.pid if own_server.process else None

    verdict = judged(Trial(seed=7, minutes=0.03, place=tmp_path, url=own_server.tcp_url))

    assert verdict.passed, verdict
    assert not set(verdict.wanted) & set(nemesis.OF_SERVERS)
    assert own_server.process is not None
    assert (own_server.process.pid, own_server.process.poll()) == (pid, None)
    assert own_server.ask("KEYS", "*") == [b"theirs"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "maxlen" else pytest.mark.slow)
        for name in MODES["work"].controls
    ],
)
def test_what_other_programs_do_wrong_is_caught(name: str, tmp_path: pathlib.Path) -> None:
    verdict = judged(Trial(seed=7, minutes=0.2, place=tmp_path, control=name))

    assert verdict.passed, verdict
    checks = planned(Trial(7, 1, tmp_path, control=name)).checks
    assert set(verdict.violations) == {check.__name__ for check in checks}


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
def test_a_queue_goes_on_under_each_load(load: QueueLoad, tmp_path: pathlib.Path) -> None:
    trial = Trial(seed=7, minutes=1, place=tmp_path)

    with server_of(trial) as server, QueueUnderLoad(trial, server, load, "mail") as under:
        found = NOTHING._replace(loads=[under.evidence()])

    assert found_by(found, LIVENESS) == {}
    assert under.ended == []
    assert under.faults == dict(load.faults)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("load", MIXED_LOADS.values(), ids=MIXED_LOADS.keys())
def test_flows_steps_limits_and_drains_beside_each_other_keep_what_they_promise(
    load: MixedLoad, tmp_path: pathlib.Path
) -> None:
    load = load._replace(faults={kind: 4 * number for kind, number in load.faults.items()})
    trial = Trial(seed=7, minutes=1, place=tmp_path)

    with server_of(trial) as server, MixedWork(trial, server, load) as mixed:
        evidence = mixed.evidence()

    assert found_by(NOTHING._replace(mixed=[evidence]), MIXED) == {}
    assert {name: wrong for name, wrong in mixed.problems.items() if wrong} == {}
    assert mixed.faults == mixed.wanted


def test_ten_minutes_are_the_size_of_a_release(tmp_path: pathlib.Path) -> None:
    plan = planned(Trial(seed=7, minutes=10, place=tmp_path))

    assert plan.tasks >= 100_000
    assert (plan.faults[KILL], plan.faults[SERVER_KILL]) == (1000, 200)
    assert set(plan.faults) >= {*nemesis.OF_CLIENTS, *nemesis.OF_SERVERS, FREEZE} - {nemesis.WIPE}
    assert set(plan.workers) == {"library", "threads", "coroutines", "asyncbus"}
    assert {load.name for load in plan.loads} == set(LOADS)
    assert {load.name for load in plan.mixed} == set(MIXED_LOADS)
    assert set(plan.checks) > {*LIVENESS, *MIXED}


def test_a_server_that_is_not_ours_loses_no_data(tmp_path: pathlib.Path) -> None:
    plan = planned(Trial(seed=7, minutes=1, place=tmp_path, url="redis://nowhere"))

    assert [load.name for load in plan.mixed] == ["together"]


def test_the_faults_spoil_what_the_library_has() -> None:
    # In another process, which the faults do not outlive.
    spoil = "from tests.torture.work import faulty\nfor fault in faulty.FAULTS.values(): fault()"

    subprocess.run([sys.executable, "-c", spoil], check=True)


def test_every_fault_of_the_library_has_a_control_and_every_load_finds_one(
    tmp_path: pathlib.Path,
) -> None:
    plans = [planned(Trial(7, 1, tmp_path, control=fault)) for fault in FAULTS]

    assert set(FAULTS) < set(MODES["work"].controls)
    assert {load.name for plan in plans for load in plan.loads} == set(LOADS)
    assert {load.name for plan in plans for load in plan.mixed} == set(MIXED_LOADS)
    assert {check for plan in plans for check in plan.checks} >= {*LIVENESS, attempts_unlogged}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_release_loses_and_wrongs_nothing(tmp_path: pathlib.Path) -> None:
    verdict = judged(Trial(seed=11, minutes=10, place=tmp_path))

    assert verdict.passed, verdict
