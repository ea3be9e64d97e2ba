"""A mode's run: its server, its processes, the faults, and the verdict on what came of it."""

from __future__ import annotations

import abc
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import agentbus
from tests.torture.assignment import Assignment
from tests.torture.history import HistoryEntry, Scribe
from tests.torture.mode import Trial
from tests.torture.nemesis import Client, Fault, Nemesis, possible
from tests.torture.server import DisposableServer
from tests.torture.site import Site, through, upstream_of
from tests.torture.verdict import ENDED, Verdict, found_by

Check = Callable[[Any], Collection[Any]]
_TELLS_EVERY = 10.0
_LOOKS_EVERY = 0.2
_ANSWERS_WITHIN = 30.0
_STOPS_WITHIN = 120.0


@contextlib.contextmanager
def server_of(trial: Trial, *options: str, clock: bool = True) -> Iterator[DisposableServer | None]:
    """Start a server, unless the trial names one: there the project is cleared before and afterwards."""
    if trial.url is None:
        with DisposableServer(trial.place / "server", *options, clock=clock) as server:
            yield server
        return
    with agentbus.connect(trial.url, project=trial.project, agent="torture") as bus:
        bus.clear()
        try:
            yield None
        finally:
            bus.clear()


class Workload(Site, abc.ABC):
    """Base of the modes' workloads; `evidence` does the work, and returns what `checks` judge.

    `problems` are violations that the run itself notices, by name. `limit` is how far the processes may go.
    """

    mode = ""
    checks: Collection[Check] = ()

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial.place, upstream_of(server, trial.url))
        self.trial, self.server = trial, server
        self.project = trial.project
        # How the judge reaches the server, past all proxies.
        self.url = server.url if server is not None else str(trial.url)
        self.faults: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.problems: dict[str, list[str]] = {ENDED: self.ended, "unfinished": []}
        # How many seconds a step may take.
        self.patience = trial.patience
        self.limit = (0, False)
        self.began = time.monotonic()
        self.nemesis = Nemesis({}, 1.0, 0, self.clients, None)
        self._told = 0.0
        self._faults_history = Scribe(self.place / "faults")

    @classmethod
    def torture(cls, trial: Trial) -> Iterator[Verdict]:
        """Run once, and judge."""
        with server_of(trial) as server, cls(trial, server) as workload:
            yield workload.verdict()

    @abc.abstractmethod
    def evidence(self) -> Any:
        """Do the work, and return what is known in the end."""

    @abc.abstractmethod
    def figures(self, evidence: Any) -> dict[str, Any]:
        """Count what was done."""

    def own_faults(self) -> Mapping[str, Fault]:
        """Return the faults that only this mode has, or does in another way."""
        return {}

    def fit(self, client: Client) -> bool:
        """Tell whether a client can be hurt now."""
        return True

    def saw(self, entry: HistoryEntry) -> None:
        """Take a line of a process's history."""

    def pace(self) -> None:
        """Decide, at each tick, how far the processes may go."""

    def verdict(self) -> Verdict:
        """Do the work, and judge it."""
        evidence = self.evidence()
        seconds = time.monotonic() - self.began
        violations = found_by(evidence, self.checks)
        violations |= {name: wrong for name, wrong in self.problems.items() if wrong}
        return Verdict(
            *(self.mode, self.trial.seed, seconds, self.faults, self.wanted),
            *(self.figures(evidence), violations, self.place, self.trial.control),
        )

    def new_nemesis(self, wanted: Mapping[str, int], gap: float) -> Nemesis:
        """Take a nemesis for those of these faults that can be done to this server."""
        self.nemesis = Nemesis(
            *(possible(wanted, self.server), gap, self.trial.seed, self.clients, self.server),
            fit=self.fit,
        )
        self.nemesis.faults |= self.own_faults()
        self.nemesis.log = self._faults_history
        return self.nemesis

    def step(self, what: str, over: Callable[[], bool], nemesis: Nemesis | None = None) -> None:
        """Run until this is over, and the faults of the nemesis, which count in the verdict, are done.

        That it takes too long is a violation. `pace` is called if there is a nemesis.
        """
        self.trial.tell(what)
        looked = 0.0

        def now() -> bool:
            nonlocal looked
            # To look may be expensive.
            if time.monotonic() < looked + _LOOKS_EVERY:
                return False
            looked = time.monotonic()
            return over()

        def meanwhile() -> None:
            if nemesis is None:
                return
            self.pace()
            if nemesis.total and time.monotonic() >= self._told + _TELLS_EVERY:
                self._told = time.monotonic()
                self.trial.tell(f"{nemesis.done} of {nemesis.total} faults")

        faults = nemesis or Nemesis({}, 1.0, 0, [], None)
        if not self.run(faults, now, self.patience, self.saw, meanwhile):
            self.problems["unfinished"].append(f"{what}: not over after {self.patience:.0f} s")
        for total, found in ((self.faults, faults.counts), (self.wanted, faults.wanted)):
            total |= {kind: total.get(kind, 0) + number for kind, number in found.items()}

    def allow(self, number: int, *, over: bool = False) -> None:
        """Let the processes go as far as a number; `over` means that it will not be raised any more."""
        if (number, over) != self.limit:
            self.limit = (number, over)
            for client in self.clients:
                client.tell(f"{number} {int(over)}")

    def assign(self, client: Client, module: str, kind: str = "", **options: Any) -> list[str]:
        """Return the command line of a process: a module, whose `main` gets the assignment."""
        url = through(client.proxies[0], self.trial.url) if client.proxies else ""
        told = Assignment(
            *(client.name, kind, url, self.project, str(self.place), self.trial.seed),
            *(*self.limit, options),
        )
        return ["tests.torture.process", module, json.dumps(told)]

    def start(self, name: str, module: ModuleType, kind: str = "", **options: Any) -> Client:
        """Start a process of a module, whose `main` gets the assignment."""
        return self.hire(name, lambda one: self.assign(one, module.__name__, kind, **options))

    def stop(self, clients: Sequence[Client]) -> None:
        """End processes by SIGTERM; not to end well then is the same as to end by oneself."""
        for one in clients:
            one.send(signal.SIGTERM)
        for one in clients:
            assert one.process is not None
            try:
                code = one.process.wait(_STOPS_WITHIN)
            except subprocess.TimeoutExpired:
                self.ended.append(f"{one.name} did not stop on SIGTERM")
                continue
            # Its last lines may say that it had to die.
            self.read(self.saw)
            if code and not one.killed:
                self.ended.append(f"{one.name} ended with {code} on SIGTERM")

    def connect(self) -> agentbus.Bus:
        """Connect the judge."""
        return agentbus.connect(
            self.url, project=self.project, agent="judge", deadline=_ANSWERS_WITHIN
        )
