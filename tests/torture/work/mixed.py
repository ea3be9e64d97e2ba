"""A mixed load: its processes, what happens to them and to their server, and what came of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from agentbus.core.keys import Keys
from agentbus.tasks import Flows
from agentbus.tasks.flow_record import ENDED
from agentbus.tasks.limits import Limits
from tests.torture.history import OK, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import OF_CLIENTS, OUTAGES, WIPE, Fault, Steps, lasting
from tests.torture.plain import plain_client
from tests.torture.server import DisposableServer
from tests.torture.work import faulty, mixed_programs
from tests.torture.work.checks import DataLoss, MixedEvidence, by_process
from tests.torture.work.loads import AT_ONCE, FAILOVER, LOST_TAIL, NO_ANSWER, MixedLoad
from tests.torture.work.mixed_checks import LIMITED, RESULT
from tests.torture.work.mixed_programs import AUTHOR, DRAINER, WORKER
from tests.torture.work.tasks import LIFE, PUBLISH
from tests.torture.workload import Workload

_GAP = 0.4
_ROUNDS_A_SECOND = 3
_LONGEST_ANSWER = 30.0
# What is in flight when the server dies: a question of one that releases tasks, and any script.
_RELEASES, _ANY = b"ZRANGEBYLEX", b"EVALSHA"
# How long to wait for one of these, how long an answer may take to be written down, and for how long a
# primary serves alone before it dies, in seconds.
_CATCHES, _NOTED, _ALONE = 2.0, 0.3, 0.4
# How many bytes are cut off a log: those of some scripts.
_LOST = (200, 4000)
_SYNCS_WITHIN = 30.0
# After a deadline of a second, it asks once more for two.
_GIVES_UP = 3.3


class MixedWork(Workload):
    """Those who publish go on, round after round, until all faults are done."""

    mode = "work"

    def __init__(self, trial: Trial, server: DisposableServer | None, load: MixedLoad) -> None:
        super().__init__(trial, server)
        self.load = load
        self.losses: list[DataLoss] = []
        self._queues = {kind: f"{load.name}.{kind}" for kind in (WORKER, LIMITED, DRAINER)}
        self._lives: set[str] = set()
        # Whether anybody has asked for a result.
        self._asked = False
        self._replica: DisposableServer | None = None
        # How long the log was when the last durable task had been confirmed.
        self._durable = 0

    def evidence(self) -> MixedEvidence:
        self._start_all()
        self.allow(_ROUNDS_A_SECOND)
        self.step(
            f"{self.load.name}: processes start",
            lambda: self._asked and len(self._lives) == len(self.clients),
        )
        self.began = time.monotonic()
        faults = self.load.faults
        if self.server is None:
            faults = {kind: faults[kind] for kind in faults if kind in OF_CLIENTS}
        nemesis = self.new_nemesis(faults, _GAP)
        self.step(f"{self.load.name}: tasks are done", self._over, nemesis)
        self.problems["stuck"] = self._left()
        return MixedEvidence([*by_process(self.reader.entries)], self.losses)

    def figures(self, evidence: MixedEvidence) -> dict[str, Any]:
        return {}

    def _start_all(self) -> None:
        queues, durable = self._queues, self.load.durable
        if durable == "replica":
            assert self.server is not None
            replica = DisposableServer(self.place / "replica")
            self._replica = self._open.enter_context(replica)
            self._follow(replica, self.server)
        with self.connect() as bus:
            Limits(bus).set(queues[LIMITED], at_once=AT_ONCE)
        for number, at_once in enumerate((1, 4)):
            self._launch(
                f"worker-{number}", mixed_programs, WORKER, queue=queues[WORKER], at_once=at_once
            )
        for number in range(2):
            name = f"limited-{number}"
            self._launch(name, mixed_programs, WORKER, queue=queues[LIMITED], at_once=4)
            of = {"number": number + 1, "queue": queues[DRAINER], "durable": durable}
            self._launch(f"drainer-{number}", mixed_programs, DRAINER, **of)
        of = {"number": 0, "queue": queues[WORKER], "limited": queues[LIMITED]}
        self._launch(AUTHOR, mixed_programs, AUTHOR, durable=durable, **of)

    def _launch(self, name: str, module: ModuleType, kind: str, **options: Any) -> None:
        """Start a process; under a control, with its fault."""
        if self.trial.control is not None:
            options |= {"fault": self.trial.control, "program": module.__name__}
            module = faulty
        self.start(name, module, kind, **options)

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == LIFE:
            self._lives.add(entry.who)
        elif entry.op == RESULT:
            self._asked = True
        elif entry.op == PUBLISH and entry.phase == OK and entry.of["durable"]:
            self._durable = self.server.written if self.server is not None else 0

    def pace(self) -> None:
        if not self.limit[1]:
            rounds = _ROUNDS_A_SECOND + int((time.monotonic() - self.began) * _ROUNDS_A_SECOND)
            self.allow(rounds, over=self.nemesis.finished)

    def _over(self) -> bool:
        """Tell whether nobody publishes any more, and nothing is left to be done."""
        kinds = (AUTHOR, DRAINER)
        if not all(client.done for client in self.clients if client.name.startswith(kinds)):
            return False
        return not self._left()

    def _left(self) -> list[str]:
        """Return the flows and the queues that are not at their end."""
        keys = Keys(self.project)
        with self.connect() as bus, plain_client(self.url, _LONGEST_ANSWER) as raw:
            flows = [flow.id for flow in Flows(bus).list() if flow.state not in ENDED]
            return flows + [
                queue
                for queue in self._queues.values()
                if bus.queue(queue).remaining() or raw.zcard(keys.after(queue))
            ]

    # -- faults --

    def own_faults(self) -> Mapping[str, Fault]:
        faults = {
            NO_ANSWER: self._leave_unanswered,
            LOST_TAIL: self._lose_tail,
            WIPE: self._wipe,
            FAILOVER: self._fail_over,
        }
        return {kind: partial(self.nemesis.alone, kind, faults[kind]) for kind in faults}

    @contextlib.contextmanager
    def _losing(self, *, everything: bool = False) -> Iterator[None]:
        """Write down that the server loses data."""
        begin = time.monotonic_ns()
        yield
        # What a process learned before, it may not have written down yet.
        noted = time.monotonic_ns() + round(_NOTED * 1e9)
        self.losses.append(DataLoss(begin, noted, everything))

    def _catch(self, request: bytes, whose: str = "", *, reply: bool = False) -> Steps:
        """Keep back the next request of somebody, or the reply, if there is one in time."""
        proxies = [client.proxies[0] for client in self.clients if client.name.startswith(whose)]
        before = sum(proxy.kept for proxy in proxies)
        for proxy in proxies:
            proxy.keeps, proxy.keeps_reply = request, reply
        until = time.monotonic() + _CATCHES
        while sum(proxy.kept for proxy in proxies) == before and time.monotonic() < until:
            yield True
        for proxy in proxies:
            proxy.keeps = b""

    def _leave_unanswered(self, server: DisposableServer) -> Steps:
        """Let the server do a publication, and then nothing until the author has given up."""
        yield from self._catch(_ANY, AUTHOR, reply=True)
        server.stop()
        self.client(AUTHOR).proxies[0].cut()
        yield from lasting(_GIVES_UP, server.go_on)

    def _lose_tail(self, server: DisposableServer) -> Steps:
        """Kill the server while somebody releases tasks, and cut off the end of its log.

        What was confirmed as durable stays.
        """
        chance = self.nemesis.chance
        yield from self._catch(_RELEASES)
        with self._losing():
            server.kill()
            self.read(self.saw)
            most = server.written - self._durable
            if most > _LOST[0]:
                self.nemesis.truncated += server.lose_tail(
                    chance.randint(_LOST[0], min(most, _LOST[1]))
                )
            time.sleep(chance.choice(OUTAGES))
            server.start()
        yield True

    def _wipe(self, server: DisposableServer) -> Steps:
        with self._losing(everything=True):
            server.wipe(restart=self.nemesis.chance.random() < 0.5)
        self._durable = 0
        yield True

    def _fail_over(self, primary: DisposableServer) -> Steps:
        """Kill the primary within a request, and promote its replica, which may have been left behind."""
        replica = self._replica
        assert replica is not None
        chance = self.nemesis.chance
        with self._losing():
            if self.nemesis.left(FAILOVER) % 2 == 0:
                primary.ask("ACL", "SETUSER", "default", "-psync", "-sync", "-replconf")
                primary.ask("CLIENT", "KILL", "TYPE", "replica")
                until = time.monotonic() + _ALONE
                while time.monotonic() < until:
                    yield True
            yield from self._catch(_ANY, reply=chance.random() < 0.5)
            primary.kill()
            replica.ask("REPLICAOF", "NO", "ONE")
            self._lead(replica)
        yield from self._follow_again(primary, replica)

    def _lead(self, server: DisposableServer) -> None:
        """Let all processes, and the judge, reach this server in place of the other."""
        self.server = self.nemesis.server = server
        self.url, self._upstream = server.url, server.socket
        for client in self.clients:
            for proxy in client.proxies:
                proxy.upstream = server.socket
                proxy.cut()

    def _follow_again(self, dead: DisposableServer, primary: DisposableServer) -> Steps:
        """Start a dead primary as the replica of its successor."""
        dead.start()
        dead.ask("REPLICAOF", "127.0.0.1", primary.port)
        self._replica = dead
        until = time.monotonic() + _SYNCS_WITHIN
        while not _follows(dead) and time.monotonic() < until:
            yield True

    def _follow(self, replica: DisposableServer, primary: DisposableServer) -> None:
        for server in (primary, replica):
            # Now, and when it is started again.
            server.ask("CONFIG", "SET", "repl-diskless-sync-delay", 0)
            server.options = (*server.options, "--repl-diskless-sync-delay", "0")
        replica.ask("REPLICAOF", "127.0.0.1", primary.port)
        self.step("a replica follows", lambda: _follows(replica))


def _follows(replica: DisposableServer) -> bool:
    return b"master_link_status:up" in replica.ask("INFO", "replication")
