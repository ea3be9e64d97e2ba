"""What a task costs on each path, against a plain one: CPU time of client and server, in one run.

No path may cost a hundred times a plain task. Each round runs every path in its own process, on a
server without an append-only file; the CPU time is that of the process and of the server together.
[Why it is fast](why-fast.md#queues) explains the design.

    python -m scripts.benchmarks.cliffs [PATH ...] [--tasks N] [--rounds N] [--followers N]
        [--beside CHECKOUT]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import ROOT, Server

SIZES = {
    "quick": {"tasks": 400, "rounds": 1, "followers": 10},
    "page": {"rounds": 5, "followers": 200},
}
_WORKED, _PUBLISHED, _LARGE = "a plain task", "publish_many", "by hand with hiredis"
_PATHS = pathlib.Path(__file__).with_name("_cliff_paths.py")


@dataclass(frozen=True, slots=True)
class _Path:
    """A path by its name, what it is called, the most that it may cost, and its part of all the tasks."""

    name: str
    label: str
    most: float | None = None
    part: float = 1.0
    base: str = _WORKED


_WORK = (
    _Path("plain", _WORKED),
    _Path("result", "the handler returns a value", 15),
    _Path("ordering", "an ordering key, of 1,000", 30, 0.25),
    _Path("retried", "fails once, then retried", 60, 0.05),
    _Path("delayed", "delayed: publish and work", 40, 0.25),
    _Path("threads", "concurrency=8, threads", 12),
    _Path("coroutines", "concurrency=16, coroutines", 12),
    _Path("batch", "batch=True", 3.5),
    _Path("envelope", "an envelope", 6),
    _Path("priority", "a priority", 6),
)
_PUBLISH = (
    _Path("publish", _PUBLISHED, base=_PUBLISHED),
    _Path("publish-envelope", "an envelope", 6, base=_PUBLISHED),
    _Path("publish-priority", "a priority", 6, base=_PUBLISHED),
    _Path("callers", "async publish, 100 callers", 8, base=_PUBLISHED),
    _Path("caller", "async publish, one caller", None, 0.02, base=_PUBLISHED),
)
_PAYLOADS = (
    _Path("large-raw", _LARGE, part=0.02, base=_LARGE),
    _Path("large", "publish_many and work", part=0.02, base=_LARGE),
)
# This part of what is done by hand is done in the same time.
_LEAST = 0.9
# What an idle worker may have, by what `_cliff_paths` returns of it.
_IDLE = (
    ("idle", "connections", "connections", 1),
    ("idle", "requests", "requests a second", 2),
    ("idle", "server", "% of a core of the server", None),
    ("idle-queues", "connections", "100 queues: connections", 1),
    ("idle-queues", "requests", "100 queues: requests a second", None),
    ("idle-queues", "server", "100 queues: % of a core of the server", 1),
)
_IDLE_QUEUES = 100
_FOLLOWERS = (("followers", "in threads"), ("async-followers", "in coroutines"))
_MOST_CONNECTIONS = 5

Found = dict[str, list[dict[str, float]]]


class _Site:
    """The server, what was measured on it by path, and by path what another checkout's package does."""

    def __init__(self, server: Server, rounds: int, beside: pathlib.Path | None) -> None:
        self._server = server
        self._rounds = rounds
        self._beside = beside
        self.found: Found = defaultdict(list)
        self.other: Found = defaultdict(list)

    def measure(self, paths: Iterable[tuple[str, int]], rounds: int | None = None) -> None:
        """Run paths, each with so many tasks, in turns."""
        paths = [*paths]
        for _ in range(rounds or self._rounds):
            for name, number in paths:
                self.found[name].append(self._one(ROOT, name, number))
                if self._beside is None:
                    continue
                # It may lack this path.
                with contextlib.suppress(subprocess.CalledProcessError):
                    self.other[name].append(self._one(self._beside, name, number))

    def _one(self, checkout: pathlib.Path, name: str, number: int) -> dict[str, float]:
        words = [sys.executable, "-P", str(_PATHS), self._server.socket, name, str(number)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True)
        self._server.ask("FLUSHALL")
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def spread(self, path: str, part: str = "all") -> Spread:
        """Return what a path cost."""
        return Spread.of(one[part] for one in self.found[path])

    def ratio(self, path: str, base: str) -> float:
        """Return the median of the rounds' ratios."""
        pairs = zip(self.found[path], self.found[base], strict=True)
        return percentile([mine["all"] / theirs["all"] for mine, theirs in pairs], 50)

    def elsewhere(self, path: str, part: str = "all") -> list[str]:
        """Return what a path cost with the other checkout's package, for a table."""
        if self._beside is None:
            return []
        if not self.other[path]:
            return [""]
        return [f"{Spread.of(one[part] for one in self.other[path]).middle:.2f}"]


def _wanted(value: float, most: float | None, least: float | None = None) -> tuple[str, str]:
    """Return a bound, and whether a figure is within it."""
    if most is not None:
        return f"≤ {most:g}", "yes" if value <= most else "no"
    if least is not None:
        return f"≥ {least:g} x", "yes" if value >= least else "no"
    return "", ""


def _marked(wanted: str, within: str) -> str:
    return f"{wanted} (exceeded)" if within == "no" else wanted


def _row(label: str, spread: Spread, bound: tuple[str, str], **more: Any) -> Row:
    return Row(label, spread, wanted=_marked(*bound), **more)


def worked(site: _Site, tasks: int, names: Iterable[str]) -> Iterator[Figure]:
    """A worker drains tasks that were published before; a delayed task is published, too.

    A task that fails once runs twice.
    """
    yield from _costs(site, tasks, names, _WORK, "worked", "A task done")


def published(site: _Site, tasks: int, names: Iterable[str]) -> Iterator[Figure]:
    """Tasks are published in batches, or one by one by coroutines of one event loop."""
    yield from _costs(site, tasks, names, _PUBLISH, "published", "A task published")


def large(site: _Site, tasks: int, names: Iterable[str]) -> Iterator[Figure]:
    """Payloads of 100 KiB, published and done, against a client that only encodes, sends and decodes them.

    By hand, lists of 5 to 20 of them are sent and read at a time, of which the best size counts. The bound
    is one of time, in which the package encodes a batch while the server stores another one.
    """
    yield from _costs(site, tasks, names, _PAYLOADS, "large", "A task of 100 KiB")
    if "large" in site.found:
        yield _timed(site)


def _timed(site: _Site) -> Figure:
    rounds = zip(site.found["large-raw"], site.found["large"], strict=True)
    ratio = percentile([by_hand["wall"] / ours["wall"] for by_hand, ours in rounds], 50)
    by_hand, ours = (site.spread(name, "wall") for name in ("large-raw", "large"))
    bound = _wanted(ratio, None, _LEAST)
    lines = [
        [_LARGE, f"{by_hand.middle:.1f}", "", "", "", *site.elsewhere("large-raw", "wall")],
        [
            *("publish_many and work", f"{ours.middle:.1f}", f"{ratio:.2f}", *bound),
            *site.elsewhere("large", "wall"),
        ],
    ]
    head = ["", "µs", "as fast", "wanted", "within"]
    table("A task of 100 KiB: µs of time", [*head, *_beside(site)], lines)
    return Figure(
        name="cliffs-large-time",
        source="cliffs.large",
        title="A task of 100 KiB: time",
        measured=f"publishing and work, median of {len(site.found['large'])} rounds",
        unit="µs",
        better="less",
        rows=(
            Row(_LARGE, by_hand, "baseline"),
            _row("publish_many and work", ours, bound, ratio=1 / ratio, against=_LARGE),
        ),
    )


def _costs(
    site: _Site,
    tasks: int,
    names: Iterable[str],
    group: tuple[_Path, ...],
    source: str,
    title: str,
) -> Iterator[Figure]:
    base = group[0]
    paths = [path for path in group if path is base or path.name in names]
    if not any(path.name in names for path in group):
        return
    site.measure((path.name, max(20, round(tasks * path.part))) for path in paths)
    lines, rows = [], []
    for path in paths:
        spread, ratio = site.spread(path.name), site.ratio(path.name, base.name)
        bound = _wanted(spread.middle, path.most)
        parts = (site.spread(path.name, part).middle for part in ("client", "server"))
        lines.append(
            [
                *(path.label, f"{spread.middle:.2f}", *(f"{part:.2f}" for part in parts)),
                *(f"{ratio:.2f}", *bound, *site.elsewhere(path.name)),
            ]
        )
        if path is base:
            rows.append(Row(path.label, spread, "baseline"))
        else:
            rows.append(_row(path.label, spread, bound, ratio=ratio, against=base.label))
    head = ["", "µs", "client", "server", "ratio", "wanted", "within"]
    table(f"{title}: µs of CPU", [*head, *_beside(site)], lines)
    yield Figure(
        name=f"cliffs-{source}",
        source=f"cliffs.{source}",
        title=title,
        measured=f"CPU time of client and server, median of {len(site.found[base.name])} rounds",
        unit="µs",
        better="less",
        rows=tuple(rows),
    )


def _beside(site: _Site) -> list[str]:
    return ["beside"] if site.other else []


def idle(site: _Site) -> Iterator[Figure]:
    """What a worker that has nothing to do costs its server: one of a queue, and one of 100 queues."""
    site.measure([("idle", 1), ("idle-queues", _IDLE_QUEUES)], 1)
    rows, lines = [], []
    for name, part, label, most in _IDLE:
        spread = site.spread(name, part)
        bound = _wanted(round(spread.middle, 1), most)
        rows.append(_row(label, spread, bound))
        lines.append([label, f"{spread.middle:.1f}", *bound, *site.elsewhere(name, part)])
    table("an idle worker", ["", "", "wanted", "within", *_beside(site)], lines)
    yield Figure(
        name="cliffs-idle",
        source="cliffs.idle",
        title="An idle worker",
        measured="over 5 s",
        unit="",
        better="less",
        rows=tuple(rows),
    )


def followers(site: _Site, number: int) -> Iterator[Figure]:
    """The connections of one process that follows the channel many times."""
    site.measure(((name, number) for name, _ in _FOLLOWERS), 1)
    rows, lines = [], []
    for name, label in _FOLLOWERS:
        spread = site.spread(name, "connections")
        bound = _wanted(spread.middle, _MOST_CONNECTIONS)
        rows.append(_row(label, spread, bound))
        lines.append([label, f"{spread.middle:.0f}", *bound, *site.elsewhere(name, "connections")])
    head = ["", "connections", "wanted", "within", *_beside(site)]
    table(f"{number:,} followers in one process", head, lines)
    yield Figure(
        name="cliffs-followers",
        source="cliffs.followers",
        title="Connections of many followers",
        measured=f"{number:,} followers in one process",
        unit="connections",
        better="less",
        rows=tuple(rows),
    )


def cliffs(given: argparse.Namespace) -> Iterator[Figure]:
    """Measure the paths that were named, or all."""
    every = [path.name for group in (_WORK, _PUBLISH, _PAYLOADS) for path in group]
    names = given.paths or [*every, "idle", "followers"]
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder), "--appendonly", "no") as server,
    ):
        site = _Site(server, given.rounds, given.beside)
        yield from worked(site, given.tasks, names)
        yield from published(site, given.tasks, names)
        yield from large(site, given.tasks, names)
        if "idle" in names:
            yield from idle(site)
        if "followers" in names:
            yield from followers(site, given.followers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--followers", type=int, default=1000)
    parser.add_argument(
        "--beside", type=pathlib.Path, metavar="CHECKOUT", help="measure its package in turns"
    )
    run(cliffs, parser, SIZES)


if __name__ == "__main__":
    main()
