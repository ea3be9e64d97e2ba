"""The dashboard in browsers: how soon a page is there, how soon it shows what happens, and what that costs.

One browser is Debian's Chromium; nine others, each with its session, are programs that read the
stream of a page. The project is that of the benchmark `dashboard`, with tasks done all the time.

    python -m scripts.benchmarks.web [--queues N] [--agents N] [--tasks N] [--seconds S] [--samples N]
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import agentbus
from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from scripts.benchmarks._streams import PROJECT, served
from scripts.benchmarks._web_clients import Idlers, Readers
from scripts.benchmarks.agents import mebibytes
from scripts.benchmarks.dashboard import cpu, fill, load
from tests.browser import chromium
from tests.browser.serving import Web

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

SIZES = {
    "quick": {
        "queues": 30,
        "agents": 50,
        "seconds": 3.0,
        "samples": 10,
        "idle": 50,
        "rounds": 1,
    },
    "page": {"rounds": 3},
}
_TOKEN = "0123456789abcdef0123456789abcdef"
_PAGES = ("/", "/queues", "/agents")
_OTHERS = 9
_PROBE = "probe"

_SEEN_WITHIN = 30.0
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"

# Notes when a text that begins with `probe` and a time is shown: in messages, and as a figure of a queue.
_WATCH = """() => {
  window.seen = [];
  const known = new Set([...document.querySelectorAll('.talk .said')].map(one => one.textContent));
  new MutationObserver(() => {
    const now = Date.now();
    for (const one of document.querySelectorAll('.talk .said')) {
      const text = one.textContent;
      if (!text.startsWith('probe ') || known.has(text)) continue;
      known.add(text);
      window.seen.push(now - Number(text.split(' ')[1]));
    }
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
_FIGURE = """wanted => {
  const begun = Date.now();
  return new Promise((found, failed) => {
    const look = () => {
      const one = document.querySelector('#groups td[data-label="Backlog"]');
      if (one && one.textContent.trim().startsWith(wanted)) found(Date.now());
      else if (Date.now() - begun > 30000) failed(new Error(`no ${wanted} within 30 s`));
      else setTimeout(look, 5);
    };
    look();
  });
}"""


_STATE = """wanted => {
  const begun = Date.now();
  return new Promise((found, failed) => {
    const look = () => {
      if (document.querySelector('#state .badge')?.textContent === wanted) found(Date.now());
      else if (Date.now() - begun > 30000) failed(new Error(`not ${wanted} within 30 s`));
      else setTimeout(look, 2);
    };
    look();
  });
}"""


class Measured:
    """What one run of the dashboard showed: times in ms, shares in percent of a core, MiB."""

    def __init__(self) -> None:
        self.paint: list[float] = []
        self.messages: list[float] = []
        self.states: list[float] = []
        self.figures: list[float] = []
        self.crowded: list[float] = []
        self.crowded_paint: list[float] = []
        self.cpu: list[float] = []
        self.server: list[float] = []
        self.memory = 0.0


def paints(context: BrowserContext, base: str, rounds: int) -> list[float]:
    """Return after how many ms each page was painted, each in a fresh window."""
    found = []
    for _ in range(rounds):
        for path in _PAGES:
            page = context.new_page()
            answer = page.goto(base + path)
            assert answer is not None
            assert answer.status == 200, (path, answer.status)
            while (painted := page.evaluate(_PAINTED)) is None:
                page.wait_for_timeout(10)
            found.append(painted)
            page.close()
    return found


def heard(page: Page, bus: agentbus.Bus, samples: int) -> list[float]:
    """Return after how many ms each of some messages was seen."""
    page.evaluate(_WATCH)
    for _ in range(samples):
        bus.speak(f"probe {time.time() * 1000:.3f}", topic="probe")
        page.wait_for_timeout(97)
    until = time.monotonic() + _SEEN_WITHIN
    while len(found := page.evaluate("window.seen")) < samples:
        if time.monotonic() > until:
            raise SystemExit(f"{len(found)} of {samples} messages were seen")
        page.wait_for_timeout(50)
    return list(found)


def settled(page: Page, base: str, bus: agentbus.Bus, samples: int) -> list[float]:
    """Return after how many ms each of some tasks was shown as done."""
    found = []
    queue = bus.queue("settled")
    for number in range(samples):
        task = queue.publish(number)
        (one,) = queue.fetch(count=1)
        page.goto(f"{base}/task?{urlencode({'id': task})}")
        page.locator("#connection[data-state=live]").wait_for()
        page.wait_for_timeout(300 + 37 * (number % 10))
        begun = time.time() * 1000
        one.ack()
        found.append(page.evaluate(_STATE, "done") - begun)
    return found


def counted(page: Page, bus: agentbus.Bus, samples: int) -> list[float]:
    """Return after how many ms each of some published tasks was in the figures of its queue."""
    found = []
    queue = bus.queue(_PROBE)
    for number in range(samples):
        # At any moment between two snapshots.
        page.wait_for_timeout(130 * (number % 8))
        begun = time.time() * 1000
        queue.publish(number)
        found.append(page.evaluate(_FIGURE, f"{number + 2}") - begun)
    return found


def costs(web: Web, server: int, seconds: float, rounds: int, pages: list[str]) -> tuple[Any, Any]:
    """Return what the dashboard takes, and what the server takes because of it."""
    own, others = [], []
    for _ in range(rounds):
        before = cpu(server)
        time.sleep(seconds)
        idle = cpu(server) - before
        with Readers(web.port, _TOKEN, pages) as readers:
            # The first second reads all lists.
            time.sleep(2.0)
            before, mine = cpu(server), cpu(web.process.pid)
            time.sleep(seconds)
            own.append((cpu(web.process.pid) - mine) / seconds * 100)
            others.append((cpu(server) - before - idle) / seconds * 100)
            if readers.ended or readers.events < len(pages) * seconds / 2:
                raise SystemExit(f"{readers.ended} streams ended, {readers.events} events came")
    return own, others


def measure(given: argparse.Namespace, url: str, server: int, bus: agentbus.Bus) -> Measured:
    """Open the dashboard in browsers, and watch."""
    found = Measured()
    bus.queue(_PROBE).publish("first")
    with contextlib.ExitStack() as stack:
        home = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        (home / "token").write_text(_TOKEN)
        web = stack.enter_context(
            Web(home / "web", url, PROJECT, "--token-file", str(home / "token"))
        )
        opened = stack.enter_context(chromium.browser())
        context = chromium.context(opened, state=chromium.let_in(opened, web.url, _TOKEN))
        found.paint = paints(context, web.base, given.rounds)
        with Readers(web.port, _TOKEN, [*_PAGES * 3][:_OTHERS]):
            talk, queue = context.new_page(), context.new_page()
            talk.goto(f"{web.base}/")
            talk.locator("#connection[data-state=live]").wait_for()
            found.messages = heard(talk, bus, given.samples)
            found.states = settled(queue, web.base, bus, given.samples // 4)
            queue.goto(f"{web.base}/queue?name={_PROBE}")
            queue.locator("#connection[data-state=live]").wait_for()
            found.figures = counted(queue, bus, given.samples // 3)
            found.memory = mebibytes(web.process.pid, "Rss")
            queue.close()
            talk.close()
        pages = [*_PAGES * 4][: _OTHERS + 1]
        found.cpu, found.server = costs(web, server, given.seconds, given.rounds, pages)
        cookie = "; ".join(f"{one['name']}={one['value']}" for one in context.cookies())
        with Idlers(web.port, cookie, 20, 100, given.idle):
            found.crowded_paint = paints(context, web.base, 1)
            talk = context.new_page()
            talk.goto(f"{web.base}/")
            talk.locator("#connection[data-state=live]").wait_for()
            found.crowded = heard(talk, bus, given.samples // 2)
            found.memory = max(found.memory, mebibytes(web.process.pid, "Rss"))
        context.close()
    return found


def web(given: argparse.Namespace) -> Iterator[Figure]:
    """Ten browsers look at a project at work, most of them at its largest lists.

    A page counts as there at its first paint, in a new window. What is seen counts from the call of
    the library until the text stands in the page. Of the server it is what it takes beside the work,
    measured in turns with and without viewers. Crowded is with 20 streams that are never read, 100 half
    requests and 1,000 connections without one.
    """
    with (
        served() as (server, _),
        agentbus.connect(server.url, project=PROJECT, agent="bench") as bus,
        contextlib.ExitStack() as working,
    ):
        fill(bus, given.queues, given.agents)
        for kind in ("work", "publish"):
            working.enter_context(load(server, kind, given.tasks))
        assert server.process is not None
        found = measure(given, server.url, server.process.pid, bus)
    about = (
        f"{given.queues:,} queues, {given.agents:,} agents, {given.tasks:g} tasks a second, 10 browsers;"
        f" {given.idle:,} idle connections where it says crowded"
    )
    times = [
        Row("first paint, the slowest", Spread.once(max(found.paint)), wanted="≤ 1,000"),
        Row("a message, p50", Spread.at(50, found.messages)),
        Row("a message, p95", Spread.at(95, found.messages), wanted="≤ 300"),
        Row("a task's state, p95", Spread.at(95, found.states), wanted="≤ 300"),
        Row("a queue's figure, p95", Spread.at(95, found.figures), wanted="≤ 1,300"),
        Row("crowded: first paint", Spread.once(max(found.crowded_paint)), wanted="≤ 1,000"),
        Row("crowded: a message, p95", Spread.at(95, found.crowded), wanted="≤ 300"),
    ]
    shares = [
        Row("the dashboard", Spread.of(found.cpu), wanted="≤ 20"),
        Row("the server", Spread.of(found.server), wanted="≤ 2"),
    ]
    memory = [Row("the dashboard, RSS", Spread.once(found.memory), wanted="≤ 120")]
    rows = [(times, "ms"), (shares, "% of a core"), (memory, "MiB")]
    table(
        about,
        ["", "", "wanted"],
        [
            [row.label, f"{row.spread.middle:.1f} {unit}", row.wanted]
            for part, unit in rows
            for row in part
        ],
    )
    titles = ("Times of the dashboard", "CPU time of the dashboard", "Memory of the dashboard")
    for title, name, (part, unit) in zip(titles, ("time", "cpu", "memory"), rows, strict=True):
        yield Figure(
            name=f"web-{name}",
            source="web.web",
            title=title,
            measured=about,
            unit=unit,
            better="less",
            rows=tuple(part),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--tasks", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--idle", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    run(web, parser, SIZES)
