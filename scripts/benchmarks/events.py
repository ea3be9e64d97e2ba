"""Events handled per second, beside the limit and a job table, on SQLite and on PostgreSQL.

    python -m scripts.benchmarks.events [--events N] [--rounds N] [--processed N]

Everything runs in one process, one step after the other, so the figures show the time per event. An event
has 200 bytes, and its handler writes one row. The variants:

- AgentBus: a business row and `send_event` in one transaction each; `Relay.run_once`; `Consumer`, one
  event a transaction or many (batch);
- (a) the limit: SQLAlchemy sessions that write the same rows without AgentBus: the business row with
  one for the outbox; then the effect, the dedup row, the checkpoint;
- (b) a job table: the business row with the job; then SELECT … FOR UPDATE SKIP LOCKED of one job, the
  effect and the job's deletion in a transaction each; or of 500 jobs at a time, with one INSERT of their
  effects and one DELETE (batch). On PostgreSQL only;
- (c) procrastinate, a job queue on the same PostgreSQL.

A second part shows how the time per event grows with the number of events processed before.
[Events](events.md) explains what each step is for.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import statistics
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

import agentbus
from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from scripts.benchmarks._procrastinate import Procrastinate
from scripts.benchmarks._shop import BODY, Shop
from tests.servers import Server
from tests.torture.events.postgres import Postgres, programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = {
    "quick": {"events": 50, "rounds": 1, "processed": 10_000},
    "page": {"events": 1000, "processed": 100_000},
}
_LIMIT = "(a) the limit"
_JOBS = ("job consume", "job consume many")
# The columns of time by what they do, the limit first, and what each is called.
_STEPS = {
    "to send": ("bare send", "send", "job send", "procrastinate send"),
    "to publish": ("relay",),
    "to act": ("bare consume", "single", "batch", *_JOBS, "procrastinate consume"),
}
_NAMES = {
    "send": "send_event",
    "relay": "the relay",
    "single": "a consumer, one at a time",
    "batch": "a consumer, batches",
    "bare send": _LIMIT,
    "bare consume": _LIMIT,
    "job send": "(b) a job table",
    "job consume": "(b) a job table",
    "job consume many": "(b) a job table, batches",
    "procrastinate send": "(c) procrastinate",
    "procrastinate consume": "(c) procrastinate",
}
_WAYS = {
    "single mode": ("send", "relay", "single"),
    "batch mode": ("send", "relay", "batch"),
    _LIMIT: ("bare send", "bare consume"),
    "(b) a job table": ("job send", "job consume"),
    "(b) a job table, batches": ("job send", "job consume many"),
    "(c) procrastinate": ("procrastinate send", "procrastinate consume"),
}
Rounds = dict[str, list[float]]


def timed(work: Callable[..., object], *args: Any, **options: Any) -> float:
    """Return how long a call takes, in seconds."""
    began = time.perf_counter()
    work(*args, **options)
    return time.perf_counter() - began


def measured(shop: Shop, number: int, rounds: int) -> Rounds:
    """Return the seconds that so many events take in each way, by rounds."""
    found: Rounds = {}
    others: Procrastinate | None = None

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    for round_ in range(rounds + 1):
        before = {name: len(each) for name, each in found.items()}
        note("send", timed(shop.send, number))
        note("relay", timed(shop.relay))
        note("single", timed(shop.consume, number, batch=False))
        note("batch", timed(shop.consume, number, batch=True))
        note("bare send", timed(shop.bare_send, number))
        note("bare consume", timed(shop.bare_consume, number))
        if shop.ledger.dialect == "postgresql":
            note("job send", timed(shop.job_send, number))
            note("job consume", timed(shop.job_consume, number))
            shop.job_send(number)
            note("job consume many", timed(shop.job_consume_many, number))
            others = others or Procrastinate(shop.ledger, shop.orders, shop.effects)
            note("procrastinate send", timed(others.send, number, BODY))
            note("procrastinate consume", timed(others.consume, number))
        if round_ == 0:
            # The first one warms up.
            found = {name: each[: before.get(name, 0)] for name, each in found.items()}
    return found


def report(name: str, number: int, found: Rounds) -> None:
    """Print what a round took, an event, and beside the baselines."""
    took = {what: statistics.median(each) for what, each in found.items()}
    table(
        f"{name}: {number} events a round",
        ("what", "events/s", "µs an event", "of the limit"),
        [
            (
                what,
                f"{number / seconds:,.0f}",
                f"{seconds / number * 1e6:.0f}",
                _ratio(what, took),
            )
            for what, seconds in took.items()
        ],
    )
    whole = {
        way: sum(took[step] for step in steps) for way, steps in _WAYS.items() if steps[0] in took
    }
    table(
        f"{name}: sent, published and acted on",
        ("way", "events/s", "x the time of the limit"),
        [
            (way, f"{number / seconds:,.0f}", f"{seconds / whole[_LIMIT]:.2f}")
            for way, seconds in whole.items()
        ],
    )


def whole(name: str, number: int, found: Rounds) -> Figure:
    """Sending, publishing and handling, one event after the other.

    The limit does only what the application and the database must do; it does not publish. A job table
    has one consumer per job; a stream has any number.
    """
    ways = {
        way: [sum(each) for each in zip(*(found[step] for step in steps), strict=True)]
        for way, steps in _WAYS.items()
        if steps[0] in found
    }
    limit = ways.pop(_LIMIT)
    base = statistics.median(limit)
    return Figure(
        name=f"events-{name.lower()}",
        source="events.whole",
        title=f"{name}: events sent, published and acted on",
        measured=_measured(number, found),
        unit="events/s",
        rows=(
            Row(_LIMIT, Spread.of(number / took for took in limit), "baseline"),
            *(
                Row(
                    way,
                    Spread.of(number / took for took in each),
                    "ours" if way.endswith("mode") else "other",
                    ratio=base / statistics.median(each),
                    against=_LIMIT,
                )
                for way, each in ways.items()
            ),
        ),
    )


def steps(name: str, number: int, found: Rounds) -> Figure:
    """Where the time of an event goes."""
    rows = []
    for group, names in _STEPS.items():
        base, *others = (what for what in names if what in found)
        each = {what: [took / number * 1e6 for took in found[what]] for what in (base, *others)}
        kind = "baseline" if base in _WAYS[_LIMIT] else "ours"
        rows.append(Row(_NAMES[base], Spread.of(each[base]), kind, group=group))
        for what in others:
            ratio = statistics.median(found[what]) / statistics.median(found[base])
            kind = "other" if _NAMES[what].startswith("(") else "ours"
            spread = Spread.of(each[what])
            rows.append(
                Row(_NAMES[what], spread, kind, ratio=ratio, against=_NAMES[base], group=group)
            )
    return Figure(
        name=f"events-{name.lower()}-steps",
        source="events.steps",
        title=f"{name}: the time of an event, by steps",
        measured=_measured(number, found),
        unit="µs",
        better="less",
        rows=tuple(rows),
    )


def _measured(number: int, found: Rounds) -> str:
    return f"median of {len(found['send'])} rounds of {number:,} events"


def _ratio(what: str, took: dict[str, float]) -> str:
    base = "bare send" if what.endswith("send") else "bare consume"
    return f"{took[what] / took[base]:.2f}"


def growth(name: str, shop: Shop, number: int, sizes: list[int]) -> Figure:
    """The time per event in single mode, by the number of events processed before."""
    found, there = {}, 0
    for size in sizes:
        shop.remember(size - there, "single")
        there = size
        shop.send(number)
        shop.relay()
        found[f"{size:,}"] = timed(shop.consume, number, batch=False) / number * 1e6
        shop.consume(number, batch=True)
    first, *others = found
    table(
        f"{name}: single mode, after so many processed",
        ("processed", "µs an event", "of the first"),
        [(size, f"{took:.0f}", f"{took / found[first]:.2f}") for size, took in found.items()],
    )
    return Figure(
        name=f"events-{name.lower()}-growth",
        source="events.growth",
        title=f"{name}: the time of an event, by how many were processed before",
        measured=f"a consumer, one at a time; {number:,} events, once",
        unit="µs",
        better="less",
        rows=(
            Row(first, Spread.once(found[first]), "baseline"),
            *(
                Row(size, Spread.once(found[size]), ratio=found[size] / found[first], against=first)
                for size in others
            ),
        ),
    )


@contextlib.contextmanager
def databases(place: pathlib.Path) -> Iterator[dict[str, str]]:
    """Start PostgreSQL, and return the URLs of both databases."""
    with Postgres() as server:
        yield {"PostgreSQL": server.url, "SQLite": f"sqlite:///{place / 'shop.db'}"}


def software() -> str:
    """Return the version of PostgreSQL."""
    words = [programs() / "postgres", "--version"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return done.stdout.split()[-1]


def events(given: argparse.Namespace) -> Iterator[Figure]:
    """Measure on both databases."""
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size <= given.processed]
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        with Server(place / "valkey") as server, databases(place) as urls:
            for name, url in urls.items():
                with agentbus.connect(server.url, project=f"bench-{name}", agent="bench") as bus:
                    shop = Shop(url, bus)
                    found = measured(shop, given.events, given.rounds)
                    report(name, given.events, found)
                    yield whole(name, given.events, found)
                    yield steps(name, given.events, found)
                    yield growth(name, shop, given.events, sizes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processed", type=int, default=1_000_000)
    run(events, parser, SIZES)


if __name__ == "__main__":
    main()
