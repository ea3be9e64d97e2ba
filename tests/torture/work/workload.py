"""A queue, its publisher and its workers, the faults that hit them, and what came of the tasks."""

from __future__ import annotations

import collections
import json
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from agentbus.core.keys import Keys
from agentbus.queues.attempt_log import unpacked
from agentbus.queues.ids import PRIORITIES
from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import FREEZE, KILL, OF_SERVERS, Client, Fault, Nemesis, Steps
from tests.torture.plain import plain_client
from tests.torture.server import DisposableServer
from tests.torture.work import (
    checks,
    controls,
    faulty,
    liveness,
    mixed_checks,
    publisher,
    worker,
)
from tests.torture.work.checks import (
    BuriedTask,
    LoadEvidence,
    LoggedRow,
    MixedEvidence,
    WorkEvidence,
)
from tests.torture.work.loads import MixedLoad, QueueLoad
from tests.torture.work.mixed import MixedWork
from tests.torture.work.plan import PUBLISHER_KILL, planned
from tests.torture.work.tasks import (
    ACK,
    ATTEMPTS,
    CONFIG,
    GROUP,
    LIFE,
    POLICIES,
    PUBLISH,
    QUEUE,
    RUN,
    TaskPlan,
    by_hand,
)
from tests.torture.work.under_load import QueueUnderLoad
from tests.torture.workload import Workload, server_of

_LONGEST_ANSWER = 30.0
# The share of the tasks that is published while there are faults to come; the rest is for faults that find
# no worker at work.
_SHARE = 0.9
PUBLISHER = "publisher"
# A moment that a clock ahead has set is that much later when the clock is back, and nothing may outlast the
# 300 s for which the server remembers requests and keys.
_LEAPS = (-120.0, -60.0, -3.0, 3.0, 15.0)
_LONGEST_FREEZE = 20.0
_LONGEST_SEARCH = 0.3
# How often a kill waits if no worker is at work, and how often it hits one at work.
_WAITS_FOR_WORK = 0.7
_AT_WORK = 0.75
_LATE_ATTEMPT = 3
_COUNTS = ": attempts"
# Entries of the log of attempts that are read at once.
_PAGE = 200


class WorkerState:
    """What a process does at the moment, by its history; several tasks can run at once."""

    def __init__(self, process: subprocess.Popen[bytes] | None = None) -> None:
        self.process = process
        self.inside: dict[int, HistoryEntry] = {}
        self.asking: dict[int, HistoryEntry] = {}
        self.answers: dict[int, str] = {}

    def saw(self, entry: HistoryEntry) -> None:
        """Take a line of its history."""
        if entry.op not in (RUN, ACK):
            return
        task, current = entry.of["i"], self.inside if entry.op == RUN else self.asking
        if entry.phase == INVOKE:
            current[task] = entry
            return
        current.pop(task, None)
        if entry.op == ACK:
            self.answers[task] = entry.phase

    @property
    def latest(self) -> int:
        """The highest attempt at any task that it is in; 0 if it is in none."""
        entries = (*self.inside.values(), *self.asking.values())
        return max((entry.of["attempt"] for entry in entries), default=0)


class QueueWork(Workload):
    """A publisher, which goes as far as the limit, and workers.

    A freeze counts once the worker, let go after another had begun its task, has the answer to its
    acknowledgement.
    """

    mode = "work"

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self.plan = plan = planned(trial)
        self.checks = plan.checks
        self.tasks = TaskPlan(
            trial.seed, plan.tasks, plan.poison, plain=plan.publisher != "library"
        )
        self._keys = Keys(self.project)
        # How often no worker was at work, how many were killed at work, and how many freezes ended in a
        # refused acknowledgement.
        self.idle = self.at_work = self.refused = 0
        # The seconds without those of the loads.
        self.lasted = 0.0
        # Where the tasks are named that must not be finished.
        self.holds = self.place / "holds"
        self.holds.mkdir(exist_ok=True)
        self._config = self.place / CONFIG
        self._config.write_text(POLICIES)
        self._states: dict[str, WorkerState] = collections.defaultdict(WorkerState)
        self._runs: dict[int, list[str]] = collections.defaultdict(list)
        # The task whose worker is frozen, and the processes that are observed meanwhile.
        self._frozen: int | None = None
        self._observed: set[str] = set()

    def new_nemesis(self, wanted: Mapping[str, int], gap: float) -> Nemesis:
        found = super().new_nemesis(wanted, gap)
        found.leaps = _LEAPS
        return found

    def evidence(self) -> WorkEvidence:
        plan = self.plan
        found = self._among_faults() if plan.workers else checks.NOTHING
        self.lasted = time.monotonic() - self.began
        for client in self.clients:
            # What is idle now would disturb the loads.
            client.end()
        under = [self._under(load, number) for number, load in enumerate(plan.loads)]
        mixed = [self._mixed(load, number) for number, load in enumerate(plan.mixed)]
        if self.trial.control is not None:
            self.problems.clear()
        return found._replace(loads=under, mixed=mixed)

    def _under(self, load: QueueLoad, number: int) -> LoadEvidence:
        """Put a load on a queue, and wait until its tasks are done."""
        queue = f"{load.name}-{number}"
        trial = self.trial._replace(place=self.place / "loads" / queue)
        with QueueUnderLoad(trial, self.server, load, queue) as under:
            evidence = under.evidence()
            self._add(under)
        return evidence

    def _mixed(self, load: MixedLoad, number: int) -> MixedEvidence:
        """Put a mixed load on a server of its own, unless ours is not to suffer."""
        trial = self.trial._replace(place=self.place / "mixed" / f"{load.name}-{number}")
        with server_of(trial) as server, MixedWork(trial, server, load) as mixed:
            evidence = mixed.evidence()
            self._add(mixed)
        return evidence

    def _add(self, part: Workload) -> None:
        """Count the faults and problems of a load in those of the run."""
        for name, wrong in part.problems.items():
            self.problems.setdefault(name, []).extend(wrong)
        for total, found in ((self.faults, part.faults), (self.wanted, part.wanted)):
            total |= {kind: total.get(kind, 0) + count for kind, count in found.items()}

    def _among_faults(self) -> WorkEvidence:
        """Have tasks done while everything fails, and return what became of them."""
        plan, options = self.plan, {"tasks": self.plan.tasks, "poison": self.plan.poison}
        self.allow(self.tasks.size if plan.late_workers else 2, over=plan.late_workers)
        self.start(PUBLISHER, publisher, plan.publisher, **options)
        enough = self.tasks.asked if plan.late_workers else 1
        self.step("tasks are published", lambda: self._accepted() >= enough)
        for number, kind in enumerate(plan.workers):
            module = worker if kind in worker.KINDS else controls
            how: dict[str, Any] = {"toil": plan.toil, "visibility": plan.visibility}
            how["config"] = str(self._config)
            if plan.fault is not None:
                how |= {"fault": plan.fault, "program": module.__name__}
                module = faulty
            self.start(f"{kind}-{number}", module, kind, **how)
        self.step("tasks are done", self._over, self.new_nemesis(plan.faults, plan.gap))
        entries = self.reader.entries
        publications = checks.published(entries)
        with plain_client(self.url, _LONGEST_ANSWER) as raw:
            found: Any = raw.xrange(self._keys.dead_letters(QUEUE, GROUP))
        waiting = self._waiting().items()
        self.problems["stuck"] = [f"{name}: {number}" for name, number in waiting if number]
        return WorkEvidence(
            publications.accepted,
            publications.unsure,
            self.tasks.poison,
            ATTEMPTS,
            checks.events(entries),
            [_buried(fields) for _, fields in found],
            publications.ordered,
            self._mishaps(),
            logged=self._logged(),
        )

    def _logged(self) -> list[LoggedRow]:
        """Return the log of attempts."""
        found: list[LoggedRow] = []
        start = "-"
        with plain_client(self.url, _LONGEST_ANSWER) as raw:
            while page := raw.xrange(self._keys.attempt_log, start, count=_PAGE):
                for entry_id, fields in page:
                    entry = unpacked(entry_id.decode(), fields)
                    found += map(LoggedRow, entry.tasks, entry.attempts)
                start = f"({page[-1][0].decode()}"
        return found

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
        """Tell whether all is published, and nothing is left of it."""
        if self.clients[0].alive or not self.nemesis.serves:
            return False
        waiting = self._waiting()
        if any(number for name, number in waiting.items() if not name.endswith(_COUNTS)):
            return False
        if any(waiting.values()):
            # A worker died between its reclaim of a task and the attempt, and another had done it: the
            # count stays until the janitor looks for leftovers, once an hour.
            with self.connect() as bus:
                bus.tidy(QUEUE)
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
                    f"{priority}{_COUNTS}": int(raw.hlen(keys.attempts(QUEUE, GROUP, priority))),
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
            "tasks a second": round(len(done) / max(1.0, self.lasted)),
            "tasks buried": len(evidence.letters),
            "poison": len(evidence.poison),
            "publications unsure": len(evidence.unsure),
            "publications refused and repeated": publications[FAIL],
            "process deaths": self.deaths,
            "killed at work": self.at_work,
            "attempts logged": len(evidence.logged or ()),
            "attempts cut off": sum(map(len, checks.attempts_cut_off(evidence).values())),
            "runs beyond the first": checks.runs_more_than_once(evidence),
            "acknowledgements accepted": answers[OK],
            "acknowledgements refused": answers[FAIL],
            "of them by arrangement": self.refused,
            "acknowledgements unsure": answers[UNKNOWN],
            "innocents out of luck": len(checks.unlucky(evidence)),
            **liveness.figures(evidence),
            **mixed_checks.figures(evidence),
        }

    # -- faults --

    def own_faults(self) -> Mapping[str, Fault]:
        return {KILL: self._kill, FREEZE: self._freeze, PUBLISHER_KILL: self._kill_publisher}

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == LIFE:
            self._states[entry.who] = WorkerState(self.client(entry.who).process)
        self._states[entry.who].saw(entry)
        if entry.op == RUN and entry.phase == INVOKE:
            self._runs[entry.of["i"]].append(entry.who)
        elif entry.op == RUN and entry.phase == OK and self._frozen is None:
            self._runs.pop(entry.of["i"], None)

    def fit(self, client: Client) -> bool:
        return client.name not in self._observed and self._frozen not in self._state(client).inside

    def _state(self, client: Client) -> WorkerState:
        """Return what the process does that has this role now: it may not have written anything yet."""
        found = self._states[client.name]
        return found if found.process is client.process else WorkerState()

    def _kill(self) -> bool:
        """Kill a worker with -9, mostly one at work.

        Not always, and not in late attempts: the last task would meet a death in each attempt, and be
        buried rightly, though it is innocent.
        """
        chance, only_at_work = self.nemesis.chance, self.plan.late_workers
        workers = [one for one in self.nemesis.victims() if one.name != PUBLISHER]
        busy = [one for one in workers if 0 < self._state(one).latest < _LATE_ATTEMPT]
        if not busy and (only_at_work or chance.random() < _WAITS_FOR_WORK):
            self.idle += 1
            return False
        aimed = busy and (only_at_work or chance.random() < _AT_WORK)
        one = self.nemesis.one_of(busy if aimed else workers)
        self.at_work += one is not None and self._state(one).latest > 0
        return one is not None and self.nemesis.kill(one)

    def _kill_publisher(self) -> bool:
        found = [one for one in self.nemesis.victims() if one.name == PUBLISHER]
        return bool(found) and self.nemesis.kill(found[0])

    def _freeze(self) -> Steps:
        """Freeze a worker inside a task until another worker has the task, and the first its answer."""
        if self._frozen is not None:
            return
        idle_at = time.monotonic() + _LONGEST_SEARCH
        while not (found := self._at_first_attempts()):
            if time.monotonic() > idle_at:
                self.idle += 1
                idle_at = time.monotonic() + _LONGEST_SEARCH
            yield False
        client, entry = self.nemesis.chance.choice(found)
        state, task = self._state(client), entry.of["i"]
        hold = self.holds / str(task)
        hold.touch()
        self._frozen, self._observed = task, {client.name}
        go_on = client.freeze()
        until = time.monotonic() + _LONGEST_FREEZE
        try:
            while not (others := [name for name in self._runs[task] if name != client.name]):
                if state.inside.get(task) is not entry or time.monotonic() > until:
                    # It had left the task when it was frozen: this shows nothing.
                    return
                yield False
            self._observed.add(others[-1])
            go_on()
            while task not in state.answers:
                if time.monotonic() > until or client.process is not state.process:
                    return
                yield False
            if state.answers[task] != UNKNOWN:
                self.refused += state.answers[task] == FAIL
                yield True
        finally:
            go_on()
            hold.unlink(missing_ok=True)
            self._frozen, self._observed = None, set()

    def _at_first_attempts(self) -> list[tuple[Client, HistoryEntry]]:
        return [
            (one, entry)
            for one in self.nemesis.victims()
            for entry in self._state(one).inside.values()
            if entry.of["attempt"] == 1 and by_hand(entry.of["i"])
        ]


def _buried(fields: Mapping[bytes, bytes]) -> BuriedTask:
    return BuriedTask(
        json.loads(fields.get(b"payload", b'{"i":-1}'))["i"],
        fields.get(b"task_id", b"").decode(),
        int(fields.get(b"attempts", 0)),
    )


torture = QueueWork.torture
