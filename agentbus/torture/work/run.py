"""One run: a queue, its publisher and its workers, all that happens to them, and what came of it."""

from __future__ import annotations

import collections
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import agentbus
from agentbus.core.keys import Keys
from agentbus.queues.ids import PRIORITIES
from agentbus.torture.history import FAIL, OK, UNKNOWN, Entry
from agentbus.torture.nemesis import KILL, OF_SERVERS, Client, possible
from agentbus.torture.order import Order
from agentbus.torture.server import Server
from agentbus.torture.site import Site, through, upstream_of
from agentbus.torture.verdict import Verdict, found_by
from agentbus.torture.work import judging
from agentbus.torture.work.hands import KINDS
from agentbus.torture.work.judging import Letter, Story
from agentbus.torture.work.naive import client as plainly
from agentbus.torture.work.nemesis import PUBLISHER, PUBLISHER_KILL, WorkNemesis
from agentbus.torture.work.plan import Plan, plan_of
from agentbus.torture.work.publisher import Pace
from agentbus.torture.work.tasks import ACK, ATTEMPTS, GROUP, PUBLISH, QUEUE, RUN, Tasks

_GLANCE = 0.01
_LOOK_AT_SERVER = 0.2
_LONGEST_ANSWER = 30.0
# What of the tasks is published while there are faults to come; the rest is for those that find nobody
# at work.
_SHARE = 0.9
_TOLD_EVERY = 10.0


def torture(order: Order) -> Iterator[Verdict]:
    """Run once, with faults at the server only if it is our own."""
    plan, place = plan_of(order), order.place / "work"
    with contextlib.ExitStack() as stack:
        server = None
        if order.url is None:
            server = stack.enter_context(Server(place / "server", clock=True))
        project = order.project
        url = server.url if server is not None else str(order.url)
        if server is None:
            # When all processes have ended, or they would write more.
            stack.callback(_clear, url, project)
        site = stack.enter_context(Site(place, upstream_of(server, order.url)))
        yield Run(order, plan, site, server, url, project).verdict()


def _clear(url: str, project: str) -> None:
    """Leave nothing behind on a server that is not ours."""
    with agentbus.connect(url, project=project, agent="torture") as bus:
        bus.clear()


class Run:
    """Runs a plan once."""

    def __init__(
        self, order: Order, plan: Plan, site: Site, server: Server | None, url: str, project: str
    ) -> None:
        self.order, self.plan, self.site, self.server = order, plan, site, server
        self.url, self.project = url, project
        self.tasks = Tasks(order.seed, plan.tasks, plan.poison, plain=plan.publisher != "library")
        self.wanted = possible(plan.faults, server)
        (site.place / "holds").mkdir(exist_ok=True)
        self.nemesis = WorkNemesis(
            self.wanted,
            plan.gap,
            order.seed,
            site.clients,
            server,
            holds=site.place / "holds",
            poison=self.tasks.poison,
            only_at_work=plan.late_workers,
            then=self._allow,
        )
        self._pace = Pace(site.place)
        self._publisher: Client | None = None
        self._next_look = self._next_word = 0.0

    def verdict(self) -> Verdict:
        """Publish, work and suffer until everything is settled or the time is up; then judge."""
        began = time.monotonic()
        self._pace.allow(2)
        self._publisher = self.site.hire(PUBLISHER, self._words_of_publisher)
        self._wait_for_first_tasks(self.tasks.asked if self.plan.late_workers else 1)
        for number, kind in enumerate(self.plan.workers):
            self.site.hire(f"{kind}-{number}", self._words_of(kind))
        self.site.run(self.nemesis, self._over, self.plan.seconds, self._saw)
        took = time.monotonic() - began
        story = self._story()
        return Verdict(
            "work",
            self.order.seed,
            took,
            self.nemesis.counts,
            self.wanted,
            self._figures(story, took),
            found_by(story, self.plan.checks),
            self.site.place,
            self.order.control,
        )

    # -- who takes part --

    def _words_of_publisher(self, client: Client) -> Sequence[str]:
        return [
            *("agentbus.torture.work.publisher", self.plan.publisher),
            *(through(client.proxies[0], self.order.url), self.project, str(self.site.place)),
            *(client.name, str(self.order.seed), str(self.plan.tasks), str(self.plan.poison)),
        ]

    def _words_of(self, kind: str) -> Callable[[Client], Sequence[str]]:
        module = "hands" if kind in KINDS else "naive"

        def words(client: Client) -> Sequence[str]:
            return [
                *(f"agentbus.torture.work.{module}", kind),
                *(through(client.proxies[0], self.order.url), self.project, str(self.site.place)),
                *(client.name, str(self.plan.toil), str(self.plan.visibility)),
            ]

        return words

    def _wait_for_first_tasks(self, number: int) -> None:
        """Have tasks published before the first worker exists."""
        until = time.monotonic() + self.plan.seconds
        while time.monotonic() < until:
            self._allow()
            self.site.reader.news()
            if len(judging.published(self.site.reader.entries).accepted) >= number:
                return
            time.sleep(_GLANCE)

    # -- while it runs --

    def _saw(self, entry: Entry) -> None:
        self.nemesis.saw(entry)
        self._tell()

    def _allow(self) -> None:
        """Let the publisher go on as far as there were faults, so that all of them meet work."""
        size, faults = self.tasks.size, self.nemesis
        if self.plan.late_workers:
            self._pace.allow(size, end=True)
        elif faults.done == faults.total:
            self._pace.allow(max(size, self._pace.allowed), end=True)
        else:
            share = _SHARE * (faults.done + 1) / (faults.total + 1)
            self._pace.allow(int(max(2, size * share)) + faults.idle)

    def _over(self) -> bool:
        """Tell whether all is published, and nothing is left of it; looks at the server now and then."""
        publisher = self._publisher
        assert publisher is not None
        now = time.monotonic()
        if now < self._next_look or publisher.alive or not self.nemesis.serves:
            return False
        self._next_look = now + _LOOK_AT_SERVER
        return not any(self._waiting().values())

    def _tell(self) -> None:
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + _TOLD_EVERY
            faults = self.nemesis
            self.order.tell(f"work: {faults.done} of {faults.total} faults, {faults.counts}")

    # -- the end --

    def _waiting(self) -> dict[str, int]:
        """Return what the server still keeps: all zero when the work is done."""
        keys = Keys(self.project)
        found: dict[str, int] = {}
        with plainly(self.url, _LONGEST_ANSWER) as raw:
            for priority in PRIORITIES:
                stream = keys.queue(QUEUE, priority)
                if not raw.exists(stream):
                    continue
                groups: Any = raw.xinfo_groups(stream)
                if not groups:
                    # No worker has come as far as making the group.
                    found[f"{priority}: not taken"] = int(raw.xlen(stream))
                    continue
                (group,) = groups
                after = b"(" + group["last-delivered-id"]
                found[f"{priority}: not taken"] = len(raw.xrange(stream, after, "+"))
                found[f"{priority}: pending"] = group["pending"]
                found[f"{priority}: aside"] = int(raw.zcard(keys.retries(QUEUE, GROUP, priority)))
                found[f"{priority}: attempts"] = int(
                    raw.hlen(keys.attempts(QUEUE, GROUP, priority))
                )
            found["delayed"] = int(raw.zcard(keys.delayed(QUEUE)))
        return found

    def _story(self) -> Story:
        entries = self.site.reader.entries
        publications = judging.published(entries)
        with plainly(self.url, _LONGEST_ANSWER) as raw:
            found: Any = raw.xrange(Keys(self.project).dead_letters(QUEUE, GROUP))
        return Story(
            publications.accepted,
            publications.unsure,
            self.tasks.poison,
            ATTEMPTS,
            judging.events(entries),
            [_letter(fields) for _, fields in found],
            self._waiting(),
            self.site.ended,
            publications.ordered,
            self._mishaps(),
        )

    def _mishaps(self) -> int:
        """Return how often one worker died or lost its server; what a server suffers, all of them do."""
        counts, workers = self.nemesis.counts, len(self.plan.workers)
        elsewhere = sum(counts.get(kind, 0) for kind in (KILL, PUBLISHER_KILL))
        of_server = sum(counts.get(kind, 0) for kind in OF_SERVERS)
        return self.site.deaths + self.nemesis.done - elsewhere + of_server * (workers - 1)

    def _figures(self, story: Story, took: float) -> dict[str, Any]:
        answers = collections.Counter(event.phase for event in story.events if event.op == ACK)
        refused = [
            entry
            for entry in self.site.reader.entries
            if entry.op == PUBLISH and entry.phase == FAIL
        ]
        done = judging.of_tasks(story.events, RUN, OK)
        return {
            "tasks accepted": len(story.accepted),
            "tasks done": len(done),
            "tasks a second": round(len(done) / took),
            "tasks buried": len(story.letters),
            "poison": len(story.poison),
            "publications unsure": len(story.unsure),
            "publications refused and repeated": len(refused),
            "process deaths": self.site.deaths,
            "killed at work": self.nemesis.at_work,
            "attempts cut off": sum(map(len, judging.attempts_cut_off(story).values())),
            "runs beyond the first": judging.runs_more_than_once(story),
            "runs at once": judging.runs_at_once(story),
            "acknowledgements accepted": answers[OK],
            "acknowledgements refused": answers[FAIL],
            "of them by arrangement": self.nemesis.refused,
            "acknowledgements unsure": answers[UNKNOWN],
            "innocents out of luck": len(judging.unlucky(story)),
        }


def _letter(fields: Mapping[bytes, bytes]) -> Letter:
    return Letter(
        json.loads(fields.get(b"payload", b'{"i":-1}'))["i"],
        fields.get(b"task_id", b"").decode(),
        int(fields.get(b"attempts", 0)),
        fields.get(b"error", b"").decode(),
    )
