"""A queue, its publisher and its workers, and what came of the tasks."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from agentbus.core.keys import Keys
from agentbus.queues.ids import PRIORITIES
from agentbus.torture.history import FAIL, OK, UNKNOWN
from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import KILL, OF_SERVERS, Client
from agentbus.torture.plain import plain_client
from agentbus.torture.server import DisposableServer
from agentbus.torture.work import checks, controls, publisher, worker
from agentbus.torture.work.checks import BuriedTask, WorkEvidence
from agentbus.torture.work.faults import PUBLISHER, HurtWorkers
from agentbus.torture.work.plan import PUBLISHER_KILL
from agentbus.torture.work.tasks import ACK, ATTEMPTS, GROUP, PUBLISH, QUEUE, RUN

_LOOK_AT_SERVER = 0.2
_LONGEST_ANSWER = 30.0
# The share of the tasks that is published while there are faults to come; the rest is for faults that find
# no worker at work.
_SHARE = 0.9


class QueueWork(HurtWorkers):
    """A publisher, which goes as far as the limit, and workers."""

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self.checks = self.plan.checks
        self._keys = Keys(self.project)
        self._next_look = 0.0

    def evidence(self) -> WorkEvidence:
        plan, options = self.plan, {"tasks": self.plan.tasks, "poison": self.plan.poison}
        self.allow(self.tasks.size if plan.late_workers else 2, over=plan.late_workers)
        self.hire(
            PUBLISHER, lambda one: self.assign(one, publisher.__name__, plan.publisher, **options)
        )
        enough = self.tasks.asked if plan.late_workers else 1
        self.quietly(lambda: self._accepted() >= enough, plan.seconds)
        for number, kind in enumerate(plan.workers):
            self.hire(f"{kind}-{number}", partial(self._words, kind))
        self.suffer(self.new_nemesis(plan.faults, plan.gap), self._over, plan.seconds)
        entries = self.reader.entries
        publications = checks.published(entries)
        with plain_client(self.url, _LONGEST_ANSWER) as raw:
            found: Any = raw.xrange(self._keys.dead_letters(QUEUE, GROUP))
        if self.trial.control is None:
            waiting = self._waiting().items()
            self.problems["stuck"] = [f"{name}: {number}" for name, number in waiting if number]
        else:
            self.problems.clear()
        return WorkEvidence(
            publications.accepted,
            publications.unsure,
            self.tasks.poison,
            ATTEMPTS,
            checks.events(entries),
            [_buried(fields) for _, fields in found],
            publications.ordered,
            self._mishaps(),
        )

    def _words(self, kind: str, client: Client) -> list[str]:
        module = worker if kind in worker.KINDS else controls
        options = {"toil": self.plan.toil, "visibility": self.plan.visibility}
        return self.assign(client, module.__name__, kind, **options)

    def _accepted(self) -> int:
        return len(checks.published(self.reader.entries).accepted)

    def pace(self) -> None:
        size, number, nemesis = self.tasks.size, self.limit[0], self.nemesis
        if self.limit[1]:
            return
        if nemesis.done == nemesis.total:
            self.allow(max(size, number), over=True)
        else:
            share = _SHARE * (nemesis.done + 1) / (nemesis.total + 1)
            self.allow(int(max(2, size * share)) + self.idle)

    def _over(self) -> bool:
        """Tell whether all is published, and nothing is left of it; asks the server now and then."""
        now = time.monotonic()
        if now < self._next_look or self.clients[0].alive or not self.nemesis.serves:
            return False
        self._next_look = now + _LOOK_AT_SERVER
        return not any(self._waiting().values())

    def _waiting(self) -> dict[str, int]:
        """Return what the server still keeps: all zero when the work is done."""
        keys = self._keys
        found: dict[str, int] = {}
        with plain_client(self.url, _LONGEST_ANSWER) as raw:
            for priority in PRIORITIES:
                stream = keys.queue(QUEUE, priority)
                if not raw.exists(stream):
                    continue
                groups: Any = raw.xinfo_groups(stream)
                if not groups:
                    # No worker has made the group yet.
                    found[f"{priority}: not taken"] = int(raw.xlen(stream))
                    continue
                (group,) = groups
                after = b"(" + group["last-delivered-id"]
                found |= {
                    f"{priority}: not taken": len(raw.xrange(stream, after, "+")),
                    f"{priority}: pending": group["pending"],
                    f"{priority}: aside": int(raw.zcard(keys.retries(QUEUE, GROUP, priority))),
                    f"{priority}: attempts": int(raw.hlen(keys.attempts(QUEUE, GROUP, priority))),
                }
            found["delayed"] = int(raw.zcard(keys.delayed(QUEUE)))
        return found

    def _mishaps(self) -> int:
        """Return how often a worker died or lost its server; a fault of the server hits all of them."""
        counts, workers = self.nemesis.counts, len(self.plan.workers)
        elsewhere = sum(counts.get(kind, 0) for kind in (KILL, PUBLISHER_KILL))
        of_server = sum(counts.get(kind, 0) for kind in OF_SERVERS)
        return self.deaths + self.nemesis.done - elsewhere + of_server * (workers - 1)

    def figures(self, evidence: WorkEvidence) -> dict[str, Any]:
        answers = collections.Counter(event.phase for event in evidence.events if event.op == ACK)
        publications = collections.Counter(
            entry.phase for entry in self.reader.entries if entry.op == PUBLISH
        )
        done = checks.of_tasks(evidence.events, RUN, OK)
        return {
            "tasks accepted": len(evidence.accepted),
            "tasks done": len(done),
            "tasks a second": round(len(done) / (time.monotonic() - self.began)),
            "tasks buried": len(evidence.letters),
            "poison": len(evidence.poison),
            "publications unsure": len(evidence.unsure),
            "publications refused and repeated": publications[FAIL],
            "process deaths": self.deaths,
            "killed at work": self.at_work,
            "attempts cut off": sum(map(len, checks.attempts_cut_off(evidence).values())),
            "runs beyond the first": checks.runs_more_than_once(evidence),
            "runs at once": checks.runs_at_once(evidence),
            "acknowledgements accepted": answers[OK],
            "acknowledgements refused": answers[FAIL],
            "of them by arrangement": self.refused,
            "acknowledgements unsure": answers[UNKNOWN],
            "innocents out of luck": len(checks.unlucky(evidence)),
        }


def _buried(fields: Mapping[bytes, bytes]) -> BuriedTask:
    return BuriedTask(
        json.loads(fields.get(b"payload", b'{"i":-1}'))["i"],
        fields.get(b"task_id", b"").decode(),
        int(fields.get(b"attempts", 0)),
    )


torture = QueueWork.torture
