"""A real mode of torture, small: a client asks its server for numbers, and is killed while it does.

One of its controls counts for itself, and badly; the other one is none, so that it is missed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import redis

from tests.torture.assignment import Allowance, Assignment
from tests.torture.history import OK, HistoryEntry
from tests.torture.mode import Mode, Trial
from tests.torture.nemesis import KILL, SERVER_KILL
from tests.torture.verdict import Verdict
from tests.torture.workload import Workload, server_of


def torture(trial: Trial) -> Iterator[Verdict]:
    """Have a client count while it and its server are killed."""
    with server_of(trial, clock=False) as server, Counting(trial, server) as counting:
        verdict = counting.verdict()
    if trial.minutes < 0.01:
        # So that a test may see what comes of too few.
        verdict = verdict._replace(faults={**verdict.faults, KILL: 1})
    yield verdict


def twice(heard: list[int]) -> list[int]:
    """Return numbers that were had twice."""
    return sorted({n for n in heard if heard.count(n) > 1})


class Counting(Workload):
    """One client, and the numbers that it was given."""

    mode, checks = "talk", (twice,)

    def evidence(self) -> list[int]:
        """Count until all faults were done, and the last client has counted, too."""
        self.heard: list[int] = []
        self.pid = 0
        key = f"{self.project}:jot:numbers"
        kind = str(self.trial.control)
        one = self.hire("one", lambda client: self.assign(client, __name__, kind, key=key))

        def over() -> bool:
            assert one.process is not None
            return len(self.heard) >= self.trial.number(100) and self.pid == one.process.pid

        self.step("one counts", over, self.new_nemesis({KILL: 2, SERVER_KILL: 1}, 0.2))
        return self.heard

    def saw(self, entry: HistoryEntry) -> None:
        """Take a number."""
        self.heard.append(entry.of["n"])
        self.pid = entry.of["pid"]
        self.trial.tell(f"{len(self.heard)} numbers")

    def figures(self, evidence: list[int]) -> dict[str, Any]:
        """Count them."""
        return {"numbers": len(evidence), "share": 0.5, "url": self.trial.url is not None}


def main(told: Assignment, _limit: Allowance) -> None:
    """Have numbers, and write them down."""
    scribe = told.scribe()
    own = 0
    while True:
        try:
            with redis.Redis.from_url(told.url, protocol=2, driver_info=None) as client:
                while True:
                    n = int(client.incr(told.options["key"]))
                    own += 1
                    number = own // 2 if told.kind == "by_heart" else n
                    scribe.note("count", OK, n=number, pid=os.getpid())
                    time.sleep(0.001)
        except (redis.RedisError, OSError):
            time.sleep(0.01)


MODE = Mode(
    name="talk",
    summary="one client counts",
    controls={
        "by_heart": "a client that counts for itself, and badly",
        "well": "one that does nothing wrong",
    },
    torture=torture,
)
