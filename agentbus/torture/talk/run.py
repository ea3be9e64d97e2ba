"""One run: ten agents, what they suffer, and the verdict on what they heard."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import urllib.parse
from collections.abc import Sequence

import agentbus
from agentbus.core.stream import position
from agentbus.torture.history import OK, Entry, Scribe
from agentbus.torture.nemesis import Client, Nemesis, possible
from agentbus.torture.network import Proxy
from agentbus.torture.order import Order
from agentbus.torture.server import Server
from agentbus.torture.site import Site, upstream_of
from agentbus.torture.talk.agent import SPOKEN, SURE
from agentbus.torture.talk.checks import CHECKS
from agentbus.torture.talk.plan import Plan, plan
from agentbus.torture.talk.role import Role, text_of
from agentbus.torture.talk.story import Said, Teller, figures
from agentbus.torture.talk.trouble import Trouble
from agentbus.torture.verdict import Verdict, found_by

_AGENT = "agentbus.torture.talk.agent"
_HOST = "host"
# Every so-manyth agent uses the asynchronous bus.
_ASYNCHRONOUS = 4
# How far the talk may be ahead of the faults, as a share of all that is to be said.
_AHEAD = 0.05
_TELLS_EVERY = 10.0


def run(order: Order) -> Verdict:
    """Have the agents talk, and judge it."""
    began = time.monotonic()
    chosen = plan(order)
    with contextlib.ExitStack() as stack:
        server = None
        if order.url is None:
            server = stack.enter_context(Server(order.place / "server", clock=True))
        place = Site(order.place, upstream_of(server, order.url))
        talk = Talk(order, chosen, server, place)
        # Agents that still run would make keys again: theirs is the inner block.
        stack.callback(talk.clear)
        with place:
            nemesis = talk.hold()
    story = talk.teller.story(place.ended, talk.late)
    return Verdict(
        *("talk", order.seed, time.monotonic() - began, nemesis.counts, talk.wanted),
        {**figures(story), "deaths": place.deaths, "bound": chosen.bound},
        found_by(story, CHECKS),
        order.place,
        order.control,
    )


class Talk:
    """The agents at a site, and how far each of them may go."""

    def __init__(self, order: Order, chosen: Plan, server: Server | None, site: Site) -> None:
        self.teller = Teller()
        self.wanted = possible(chosen.faults, server)
        self.late: list[str] = []
        self._order, self._plan, self._server, self._site = order, chosen, server, site
        # Millions of lines are judged here, in a shape that has room.
        site.reader.keeps = False
        self._project = order.project
        self._listening: set[str] = set()
        self._spoken: set[str] = set()
        self._gate = os.open(
            order.place / "gate", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        self._allow(0)

    def hold(self) -> Trouble:
        """Have them say and hear it all."""
        self._welcome()
        for number in range(self._plan.agents):
            self._site.hire(f"agent-{number}", functools.partial(self._words, number))
        clients = self._site.clients
        # Who has never listened is not told what was trimmed before: all begin with the first word.
        quiet = Nemesis({}, 1.0, 0, clients, self._server)
        self._site.run(quiet, self._all_listen, self._plan.deadline, self.teller_saw)
        began, told = time.monotonic(), time.monotonic()

        def meanwhile() -> None:
            nonlocal told
            if time.monotonic() - told > _TELLS_EVERY:
                told = time.monotonic()
                self._order.tell(f"{nemesis.done} of {nemesis.total} faults")
            self._pace(nemesis, (time.monotonic() - began) / self._plan.seconds)

        seed = self._order.seed
        log = Scribe(self._order.place / "faults")
        nemesis = Trouble(self._plan, self.wanted, seed, clients, self._server, meanwhile, log)

        def saw(entry: Entry) -> None:
            self.teller_saw(entry)
            nemesis.saw(entry)

        if not self._site.run(nemesis, self._over, self._plan.deadline, saw):
            self.late = [client.name for client in clients if client.alive]
        return nemesis

    def clear(self) -> None:
        """Leave nothing on a server that is not ours."""
        os.close(self._gate)
        if self._order.url is not None:
            with agentbus.connect(self._order.url, project=self._project, agent=_HOST) as bus:
                bus.clear()

    def teller_saw(self, entry: Entry) -> None:
        """Take in a line of a history."""
        self.teller.saw(entry)
        if entry.op == SPOKEN:
            self._spoken.add(entry.who)
        elif entry.op == SURE and entry.of["r"] is None:
            self._listening.add(entry.who)

    def _welcome(self) -> None:
        text = text_of(_HOST, 0)
        direct = self._order.url if self._server is None else self._server.url
        with agentbus.connect(direct, project=self._project, agent=_HOST) as bus:
            said = bus.speak(text)
        self.teller.said[text] = Said(_HOST, 0, None, OK, position(said.id))

    def _words(self, number: int, client: Client) -> Sequence[str]:
        order = self._order
        kind = "asynchronous" if number % _ASYNCHRONOUS == 1 else "blocking"
        role = Role(
            *(client.name, number, self._seen_through(client.proxies[0]), self._project),
            *(str(order.place), order.seed, self._plan.messages, self._plan.bound),
            order.control or kind,
        )
        return (_AGENT, role.word())

    def _seen_through(self, proxy: Proxy) -> str:
        """Return the server's URL, with its password and database, by way of a proxy."""
        if self._order.url is None:
            return proxy.url
        found = urllib.parse.urlsplit(self._order.url)
        user, at, _ = found.netloc.rpartition("@")
        return found._replace(netloc=f"{user}{at}127.0.0.1:{proxy.port}").geturl()

    # -- how far they may go --

    def _all_listen(self) -> bool:
        return len(self._listening) == self._plan.agents

    def _pace(self, nemesis: Trouble, elapsed: float) -> None:
        """Let them talk as long as there are faults, and the faults meet talk."""
        share = min(1.0, elapsed, (nemesis.done + 1) / (nemesis.total + 1) + _AHEAD)
        share = min(share, 1.0 - nemesis.needs / self._plan.messages)
        self._allow(int(share * self._plan.messages))

    def _over(self) -> bool:
        if len(self._spoken) == self._plan.agents:
            self._allow(self._plan.messages, over=True)
        return self._site.finished

    def _allow(self, number: int, *, over: bool = False) -> None:
        os.pwrite(self._gate, b"%011d %d\n" % (number, over), 0)
