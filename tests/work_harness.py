"""A queue, its publisher and its worker processes, all that may happen to them, and what came of it."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple, Self

import redis

import agentbus
from agentbus.errors import OutcomeUnknown
from agentbus.keys import Keys
from agentbus.queue import PRIORITIES
from agentbus.store import Command
from tests import history
from tests.history import Letter, Story
from tests.nemesis import CUT, HALF_OPEN, KILL, SERVER_KILL, STOP, Hand, Nemesis
from tests.proxy import Proxy
from tests.servers import Server
from tests.work_hands import ATTEMPTS, GROUP, OURS, QUEUE

ROOT = pathlib.Path(__file__).resolve().parent.parent
_GLANCE = 0.01
_LOOK_AT_SERVER = 0.2
_CHUNK = 25
_SHARE = 0.7
_AWAY = "BackendUnavailable"


def client(url: str) -> redis.Redis:
    """Return a plain connection, which shares nothing with the library under test."""
    return redis.Redis.from_url(url, protocol=2, driver_info=None)


def ask(bus: agentbus.Bus, *words: str | bytes | int) -> Any:
    """Send one command as another program would, on any kind of server, and return the plain reply."""

    def op() -> Any:
        reply = yield Command(*words)
        return reply

    return bus._run("ask", op())


class Plan(NamedTuple):
    """What is to be done, by whom, and what is to go wrong meanwhile."""

    tasks: int
    poison: int = 0
    workers: int = 6
    kills: int = 0
    server_kills: int = 0
    stops: int = 0
    cuts: int = 0  # Half of them with a RST, half of them half-open.
    kind: str = "library"
    toil: float = 0.01
    visibility: float = 1.0
    gap: float = 0.2  # Seconds from one fault to the next, about.
    seconds: float = 60.0

    def faults(self) -> dict[str, int]:
        """Return how many there are to be of each kind."""
        return {
            KILL: self.kills,
            SERVER_KILL: self.server_kills,
            STOP: self.stops,
            CUT: self.cuts - self.cuts // 2,
            HALF_OPEN: self.cuts // 2,
        }


class Site:
    """Runs a plan once."""

    def __init__(
        self, server: Server, project: str, place: pathlib.Path, plan: Plan, seed: int
    ) -> None:
        self.server, self.project, self.place, self.plan, self.seed = (
            *(server, project, place, plan),
            seed,
        )
        for name in ("hands", "holds", "errors"):
            (place / name).mkdir(parents=True)
        self._chance = random.Random(seed)
        self.poison = frozenset(self._chance.sample(range(plan.tasks), plan.poison))
        self.accepted: set[int] = set()
        self.unsure: set[int] = set()
        self._ordered: dict[str, list[int]] = collections.defaultdict(list)
        self.ended: list[str] = []
        self.deaths = self.false_starts = 0
        self.took = 0.0
        self._hands: list[Hand] = []
        self._serial = 0
        self._reader = history.Reader(place / "hands")
        self._published = threading.Event()
        self._open = contextlib.ExitStack()
        # How far the publisher may go: it waits for the faults, so that they meet work.
        self._pace = threading.Condition()
        self._ended = False
        self._nemesis: Nemesis | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended = True
        with self._pace:
            self._pace.notify_all()
        for hand in self._hands:
            hand.process.kill()
            hand.process.communicate()
        self._open.close()

    # -- the run --

    def run(self) -> Story:
        """Publish, work and suffer until everything is settled or the time is up."""
        began = time.monotonic()
        deadline = began + self.plan.seconds
        proxies = [
            self._open.enter_context(Proxy(self.server.socket))
            for _ in range(self.plan.workers + 1)
        ]
        publisher = threading.Thread(target=self._publish, args=(proxies[0],))
        self._nemesis = nemesis = Nemesis(
            self.plan, self.server, self._hands, self.place / "holds", self.seed
        )
        publisher.start()
        self._open.callback(publisher.join)
        self._wait_for_first_tasks()
        self._hands += [self._start(proxy) for proxy in proxies[1:]]
        look = 0.0
        while time.monotonic() < deadline:
            for event in self._reader.news():
                self._saw(event)
            self._replace_dead()
            nemesis.tick()
            with self._pace:
                self._pace.notify_all()
            if nemesis.serves and self._published.is_set() and time.monotonic() > look:
                look = time.monotonic() + _LOOK_AT_SERVER
                if not any(self._waiting().values()) and (nemesis.finished or nemesis.idle):
                    break
            time.sleep(_GLANCE)
        nemesis.end()
        self.took = time.monotonic() - began
        return self._story()

    def figures(self, story: Story) -> str:
        """Say what happened."""
        assert self._nemesis is not None
        done = history.of_tasks(story.events, history.DONE)
        faults = ", ".join(f"{kind} {number}" for kind, number in self._nemesis.counts.items())
        answers = collections.Counter(event.what for event in story.events)
        return (
            f"{self.plan.kind}, seed {self.seed}, {self.took:.1f} s: {len(story.accepted)} accepted "
            f"of {self.plan.tasks} ({len(self.poison)} poison), {len(story.unsure)} unsure; "
            f"faults: {faults} ({self._nemesis.at_work} killed at work); worker deaths {self.deaths} "
            f"({self.false_starts} started while the server was away); "
            f"{len(done)} done, {len(story.letters)} buried, "
            f"{history.runs_more_than_once(story)} runs more than once "
            f"({history.runs_at_once(story)} at once), "
            f"acknowledgements seen: {answers[history.ACCEPTED]} accepted, "
            f"{answers[history.REFUSED]} refused ({self._nemesis.refused} of them by a successor's "
            f"takeover, as arranged), {answers[history.UNSURE]} unsure"
        )

    def too_few(self) -> dict[str, int]:
        """Return the kinds of faults of which there were fewer than planned, with how many."""
        assert self._nemesis is not None
        counts = self._nemesis.counts
        return {
            kind: counts[kind]
            for kind, number in self.plan.faults().items()
            if counts[kind] < number
        }

    # -- the publisher --

    def _publish(self, proxy: Proxy) -> None:
        chunks = [
            range(start, min(start + _CHUNK, self.plan.tasks))
            for start in range(0, self.plan.tasks, _CHUNK)
        ]
        with agentbus.connect(proxy.url, project=self.project, agent="ada", deadline=60.0) as bus:
            queue = bus.queue(QUEUE, bound=self.plan.tasks + 1)
            for number, chunk in enumerate(chunks):
                with self._pace:
                    self._pace.wait_for(lambda n=number: self._ended or self._may(n, len(chunks)))
                if self._ended:
                    return
                try:
                    self._publish_chunk(queue, chunk)
                except OutcomeUnknown:
                    self.unsure.update(chunk)
                else:
                    self.accepted.update(chunk)
        self._published.set()

    def _may(self, number: int, chunks: int) -> bool:
        nemesis = self._nemesis
        assert nemesis is not None
        if nemesis.done == nemesis.total:
            return True
        # The rest is for when a fault finds nobody at work.
        share = _SHARE * (nemesis.done + 1) / (nemesis.total + 1)
        return number < max(2, chunks * share) + nemesis.hunger

    def _publish_chunk(self, queue: Any, chunk: range) -> None:
        payloads = [self._payload(task) for task in chunk]
        if self.plan.kind not in OURS:
            queue.publish_many(payloads)
            return
        # Most of them at once, at any priority; the last one alone, with a key, and some of those late, the
        # others in an order.
        queue.publish_many(payloads[:-1], priority=self._chance.choice(PRIORITIES))
        key = f"task {chunk[-1]}"
        if self._chance.random() < 0.5:
            queue.publish(payloads[-1], key=key, delay=self._chance.random())
        else:
            order = self._chance.choice("abc")
            self._ordered[order].append(chunk[-1])
            queue.publish(payloads[-1], key=key, ordering_key=order)

    def _payload(self, task: int) -> dict[str, int]:
        found = {"i": task}
        if task in self.poison:
            found["poison"] = 1
        elif self.plan.kind in OURS and self._chance.random() < 0.03:
            found["flaky"] = self._chance.choice((1, 1, 2))
        return found

    def _wait_for_first_tasks(self) -> None:
        """Have tasks published before the first worker exists."""
        with self._pace:
            self._pace.notify_all()
        while not self.accepted and not self.unsure:
            time.sleep(_GLANCE)

    # -- the workers --

    def _start(self, proxy: Proxy) -> Hand:
        self._serial += 1
        name = f"{self._serial:04}"
        words = [
            *(sys.executable, "-m", "tests.work_hands", self.plan.kind, proxy.url, self.project),
            *(str(self.place), name, str(self.plan.toil), str(self.plan.visibility)),
        ]
        with (self.place / "errors" / name).open("wb") as errors:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stderr=errors,
            )
        self._reader.follow(name)
        return Hand(name, process, proxy)

    def _saw(self, event: history.Event) -> None:
        assert self._nemesis is not None
        self._nemesis.saw(event)
        for hand in self._hands:
            if hand.name == event.worker:
                hand.saw(event)

    def _replace_dead(self) -> None:
        for place, hand in enumerate(self._hands):
            code = hand.process.poll()
            if code is None:
                continue
            hand.process.communicate()
            for event in self._reader.leave(hand.name):
                self._saw(event)
            self.deaths += 1
            by_poison = code == 9 and not self.poison.isdisjoint(hand.inside)
            if not hand.killed and not by_poison:
                said = (self.place / "errors" / hand.name).read_text(errors="replace")
                if not hand.worked and said.rpartition("agentbus.errors.")[2].startswith(_AWAY):
                    # It was started while the server was away: whoever starts it tries again.
                    self.false_starts += 1
                else:
                    self.ended.append(f"{hand.name} exited {code}: {said[-1500:]}")
            self._hands[place] = self._start(hand.proxy)

    # -- the end --

    def _waiting(self) -> dict[str, int]:
        """Return what the server still keeps: all zero when the work is done."""
        keys = Keys(self.project)
        found: dict[str, int] = {}
        with client(self.server.url) as raw:
            for priority in PRIORITIES:
                stream = keys.queue(QUEUE, priority)
                if not raw.exists(stream):
                    continue
                try:
                    (group,) = raw.xinfo_groups(stream)
                except ValueError:
                    # No worker has come as far as making the group.
                    found[f"{priority}: not taken"] = raw.xlen(stream)
                    continue
                after = b"(" + group["last-delivered-id"]
                found[f"{priority}: not taken"] = len(raw.xrange(stream, after, "+"))
                found[f"{priority}: pending"] = group["pending"]
                found[f"{priority}: aside"] = raw.zcard(keys.retries(QUEUE, GROUP, priority))
                found[f"{priority}: attempts"] = raw.hlen(keys.attempts(QUEUE, GROUP, priority))
            found["delayed"] = raw.zcard(keys.delayed(QUEUE))
        return found

    def _story(self) -> Story:
        for event in self._reader.news():
            self._saw(event)
        with client(self.server.url) as raw:
            letters = [_letter(fields) for _, fields in raw.xrange(self._letters)]
        return Story(
            frozenset(self.accepted),
            frozenset(self.unsure),
            self.poison,
            ATTEMPTS,
            sorted(self._reader.events),
            letters,
            self._waiting(),
            self.ended,
            self._ordered,
        )

    @property
    def _letters(self) -> str:
        return Keys(self.project).dead_letters(QUEUE, GROUP)


def _letter(fields: dict[bytes, bytes]) -> Letter:
    return Letter(
        json.loads(fields.get(b"payload", b'{"i":-1}'))["i"],
        fields.get(b"task_id", b"").decode(),
        int(fields.get(b"attempts", 0)),
        fields.get(b"error", b"").decode(),
    )
