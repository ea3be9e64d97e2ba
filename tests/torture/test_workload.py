"""A workload judges its evidence and its problems, and paces its processes."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

from tests.torture.assignment import Allowance
from tests.torture.mode import Trial
from tests.torture.nemesis import KILL, Fault
from tests.torture.workload import Workload


def broken(evidence: list[str]) -> list[str]:
    return evidence


class Nothing(Workload):
    """A workload without processes."""

    mode, checks = "talk", (broken,)

    def evidence(self) -> list[str]:
        return ["a promise"]

    def own_faults(self) -> dict[str, Fault]:
        return {KILL: lambda: True}

    def figures(self, evidence: list[str]) -> dict[str, Any]:
        return {"promises": len(evidence)}


def nothing(place: pathlib.Path) -> Nothing:
    return Nothing(Trial(7, 1.0, place, url="redis://nowhere"), None)


def test_violations_are_what_the_checks_found_and_the_problems_of_the_run(
    tmp_path: pathlib.Path,
) -> None:
    with nothing(tmp_path) as workload:
        workload.ended.append("one ended with 1")

        verdict = workload.verdict()

    assert verdict.violations == {
        "broken": ["a promise"],
        "ended_by_themselves": ["one ended with 1"],
    }
    assert (verdict.mode, verdict.seed, verdict.figures) == ("talk", 7, {"promises": 1})


def test_faults_are_counted_over_all_parts_of_a_run_and_written_down(
    tmp_path: pathlib.Path,
) -> None:
    with nothing(tmp_path) as workload:
        for _ in range(2):
            workload.step("suffer", lambda: True, workload.new_nemesis({KILL: 1}, 0.0))
        workload.step("rest", lambda: True)

    assert (workload.faults, workload.wanted) == ({KILL: 2}, {KILL: 2})
    assert (tmp_path / "faults").read_text().count(KILL) == 2


def test_a_step_that_is_not_over_in_time_is_a_violation(tmp_path: pathlib.Path) -> None:
    with nothing(tmp_path) as workload:
        workload.patience = 0.1

        workload.step("sleep", lambda: False)

    assert workload.problems["unfinished"] == ["sleep: not over after 0 s"]


def test_a_limit_is_reached_when_the_parent_raises_it_and_never_once_it_is_over() -> None:
    limit = Allowance(1)
    assert limit.reaches(1)

    limit.change(5)
    assert limit.reaches(4)

    limit.change(5, over=True)
    assert limit.reaches(5)
    assert not limit.reaches(6)


_CHILD = """
from tests.torture.assignment import assigned
told, limit = assigned()
for number in (2, 5):
    limit.reaches(number)
    print(number, limit.number, flush=True)
limit.reaches(9)
"""


def test_a_process_follows_its_limit_and_ends_with_its_parent(tmp_path: pathlib.Path) -> None:
    with nothing(tmp_path) as workload:
        client = workload.hire("one", lambda client: workload.assign(client, "this"))
        word = workload.assign(client, "this")[-1]
    words = [sys.executable, "-c", _CHILD, word]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # Only the last of the lines that came together counts.
        process.stdin.write(b"1 0\n3 0\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"2 3\n"
        process.stdin.write(b"7 0\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"5 7\n"

        process.stdin.close()

        assert process.wait() == -9
