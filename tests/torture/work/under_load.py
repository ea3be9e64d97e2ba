"""A queue under one load: its processes, what happens to them, and what came of its tasks."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from agentbus.core.keys import Keys
from tests.torture.history import INVOKE, OK, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import FREEZE, KILL, Client, Fault, Steps, lasting
from tests.torture.plain import plain_client
from tests.torture.server import DisposableServer
from tests.torture.work import checks, faulty, programs, worker
from tests.torture.work.checks import BuriedTask, LoadEvidence, Moment
from tests.torture.work.loads import FETCH, QueueLoad
from tests.torture.work.tasks import GROUP, LIFE, PUBLISH, RUN
from tests.torture.workload import Workload

_GAP = 0.1
_LONGEST_ANSWER = 30.0
# A worker is killed once it has done slow tasks for this long, in seconds.
_SLOW_FOR = 2.0
# How many slow tasks a worker begins before it is frozen.
_BEGUN = 3


class QueueUnderLoad(Workload):
    """Workers of a new queue, and its publisher if it is bounded; `evidence` publishes and waits."""

    mode = "work"

    def __init__(
        self, trial: Trial, server: DisposableServer | None, load: QueueLoad, queue: str
    ) -> None:
        super().__init__(trial, server)
        self.load, self.queue = load, queue
        self.killed: list[Moment] = []
        self.resumed: list[Moment] = []
        self._lives: collections.Counter[str] = collections.Counter()
        self._asked: dict[str, float] = {}
        self._starting = 0.0
        self._done: set[int] = set()
        # How many slow tasks each worker has begun, and which tasks it runs.
        self._begun: collections.Counter[str] = collections.Counter()
        self._inside: dict[str, set[int]] = collections.defaultdict(set)
        # When each worker has first done a slow task.
        self._slow_since: dict[str, float] = {}

    def evidence(self) -> LoadEvidence:
        load = self.load
        for number, kind in enumerate(load.workers):
            module = programs if kind == FETCH else worker
            how = {"toil": 0.0, "visibility": load.visibility, "by_hand": load.bound is not None}
            self._launch(f"{kind}-{number}", module, kind, **how)
        with self.connect() as bus:
            self.step(f"{load.name}: processes start", lambda: self._all_there(bus.workers()))
            self.began = time.monotonic()
            if load.bound is None:
                bus.queue(self.queue).publish_many(load.payloads)
            else:
                self._launch("publisher", programs, programs.FILL, load=load.name)
        nemesis = self.new_nemesis(load.faults, _GAP)
        self.step(
            f"{load.name}: tasks are done",
            lambda: self._over() or load.innocents <= self._done | self._buried().keys(),
            nemesis,
        )
        return LoadEvidence(
            *(load, round(self.began * 1e9), checks.events(self.reader.entries)),
            [entry for entry in self.reader.entries if entry.op == PUBLISH],
            [BuriedTask(task, "", number) for task, number in self._buried().items()],
            *(self.killed, self.resumed, self._starting),
        )

    def figures(self, evidence: LoadEvidence) -> dict[str, Any]:
        return {}

    def _launch(self, name: str, module: ModuleType, kind: str, **options: Any) -> None:
        """Start a process; under a control, with its fault."""
        options["queue"] = self.queue
        of = module.__name__
        if self.trial.control is not None:
            options |= {"fault": self.trial.control, "program": of}
            of = faulty.__name__

        def words(client: Client) -> list[str]:
            self._asked[name] = time.monotonic()
            return self.assign(client, of, kind, **options)

        self.hire(name, words)

    def _all_there(self, workers: Any) -> bool:
        """Tell whether all workers have started, and those of the library have registered."""
        registered = [one for one in workers if one.queue == self.queue]
        expected = sum(kind != FETCH for kind in self.load.workers)
        return len(registered) >= expected and len(self._lives) == len(self.load.workers)

    def _over(self) -> bool:
        """Tell whether it has taken too long."""
        return time.monotonic() > self.began + self.load.within + 2 * self._starting

    def _buried(self) -> dict[int, int]:
        """Return the tasks that were buried, with their attempts."""
        key = Keys(self.project).dead_letters(self.queue, GROUP)
        with plain_client(self.url, _LONGEST_ANSWER) as raw:
            found: Any = raw.xrange(key)
        return {
            json.loads(fields[b"payload"])["i"]: int(fields[b"attempts"]) for _, fields in found
        }

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == LIFE:
            self._lives[entry.who] += 1
            self._inside[entry.who].clear()
            self._starting = max(self._starting, entry.at / 1e9 - self._asked[entry.who])
        elif entry.op == RUN:
            self._ran(entry.who, entry.of["i"], entry.phase)

    def _ran(self, who: str, task: int, phase: str) -> None:
        if phase == INVOKE:
            self._inside[who].add(task)
            self._begun[who] += task >= self.load.slow
            return
        self._inside[who].discard(task)
        if phase == OK:
            self._done.add(task)
            if task >= self.load.slow:
                self._slow_since.setdefault(who, time.monotonic())

    def pace(self) -> None:
        if self._over():
            self.nemesis.give_up()

    # -- faults --

    def own_faults(self) -> Mapping[str, Fault]:
        return {KILL: self._kill, FREEZE: self._freeze}

    def _life(self, client: Client) -> str:
        return f"{client.name}.{self._lives[client.name]}"

    def _kill(self) -> bool:
        """Kill a worker that runs a task, and has done slow ones for some time."""
        since = time.monotonic() - _SLOW_FOR
        found = [
            one
            for one in self.nemesis.victims()
            if self._inside[one.name] and self._slow_since.get(one.name, since) < since
        ]
        if not found:
            return False
        self.killed.append(Moment(self._life(found[0]), time.monotonic_ns()))
        return self.nemesis.kill(found[0])

    def _freeze(self) -> Steps:
        """Freeze a worker, but not the first, until the others have done everything."""
        while not (found := self._at_work()):
            if self._over():
                return
            yield False
        client = self.nemesis.chance.choice(found)
        go_on = client.freeze()
        try:
            while not (self._over() or self.load.innocents <= self._done):
                yield True
            self.resumed.append(Moment(self._life(client), time.monotonic_ns()))
            go_on()
            # What it has lost, it would begin at once.
            yield from lasting(self.load.visibility, go_on)
        finally:
            go_on()

    def _at_work(self) -> list[Client]:
        return [one for one in self.nemesis.victims()[1:] if self._begun[one.name] > _BEGUN]
