"""Slowest and noisiest: queues, groups and workers by time spent, and writers by volume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentbus.pipeline.reports.aggregate import Figures, Row
from agentbus.pipeline.reports.arithmetic import firsts, ordered, share, summed
from agentbus.pipeline.reports.entries import COUNTS, ENTRIES, counted
from agentbus.pipeline.reports.report import Chart, Report, Table
from agentbus.pipeline.reports.work import (
    ACCURACY,
    DURATIONS,
    GROUP,
    SHORTEST,
    WORK,
    WORKER,
    by_worker,
    done,
    durations,
    percentiles,
)

# Maximum number of rows of each kind, the first by each of the figures.
MOST = 20
_SLOW = {"by_mean": "mean_ms", "by_p99": "p99_ms", "by_busy": "busy_ms"}
_NOISY = {"by_entries": "entries", "by_bytes": "bytes"}
_TIMES = ("runs", "mean_ms", "p50_ms", "p99_ms", "busy_ms")


def slow(figures: Figures, *keys: str) -> list[Row]:
    """Return runs, mean_ms, p50_ms, p99_ms and busy_ms by these keys, with a rank by each figure.

    Each row is among the first twenty by the mean, the 99th percentile, or the time spent; the rows
    are ordered by the 99th percentile, slowest first.
    """
    rows, spent = by_worker(figures), done(figures, keys)
    agents: dict[tuple[Any, ...], str] = {}
    for row in rows:
        key = tuple([row[name] for name in keys])
        agents[key] = max(agents.get(key, ""), row["agent"] or "")
    found = []
    for key, ran in durations(figures, keys, "ran").items():
        runs, busy = sum(ran.buckets), spent[key]["busy_ms"]
        found.append(
            {
                **dict(zip(keys, key, strict=True)),
                "agent": agents[key] or None,
                "runs": runs,
                "mean_ms": share(busy, runs),
                **percentiles(ran, 0.5, 0.99),
                "busy_ms": busy,
            }
        )
    return ordered(firsts(found, _SLOW, keys, MOST), "by_p99", "by_mean", *keys)


def noisy(figures: Figures) -> list[Row]:
    """Return the agents, topics and queues (`what`) with the most entries and the most bytes.

    An agent's entries are its messages and the tasks that it published. `entries_share` is the
    share of all messages and tasks that name an agent, a topic or a queue.
    """
    found: list[Row] = []
    for what in ("agent", "topic", "queue"):
        rows: list[dict[str, Any]] = [
            {
                "what": what,
                "name": name,
                "entries": sums["messages"] + sums["events"] + sums["tasks"],
                "bytes": sums["bytes"],
            }
            for (name,), sums in summed(counted(figures, what), ("name",), COUNTS).items()
            if name
        ]
        for figure in ("entries", "bytes"):
            every = sum(row[figure] for row in rows)
            for row in rows:
                row[f"{figure}_share"] = share(row[figure], every)
        found += firsts(rows, _NOISY, ("name",), MOST)
    return ordered(found, "what", "by_entries", "by_bytes", "name")


def build(figures: Figures) -> Sequence[Table]:
    """Return the tables of the slowest and the noisiest."""
    note = f"'by mean', 'by p99' and 'by busy' are places by these figures. {ACCURACY}"
    queues, groups = (durations(figures, keys, "ran") for keys in (("queue",), GROUP))
    return (
        Table(
            "queues",
            "Slowest queues",
            ("queue", *_TIMES, *_SLOW),
            slow(figures, "queue"),
            Chart("bar", "queue", ("mean_ms", "p99_ms"), unit="ms"),
            note=note,
            unmeasured=SHORTEST,
        ),
        Table(
            "groups",
            "Slowest groups",
            (*GROUP, *_TIMES, *_SLOW),
            slow(figures, *GROUP),
            note=note,
            unmeasured=SHORTEST,
            repeats=len(groups) == len(queues),
        ),
        Table(
            "workers",
            "Slowest workers",
            (*WORKER, "agent", *_TIMES, *_SLOW),
            slow(figures, *WORKER),
            Chart("bar", "worker", ("mean_ms", "p99_ms"), unit="ms"),
            note=note,
            unmeasured=SHORTEST,
        ),
        Table(
            "noisiest",
            "Noisiest agents, topics and queues",
            ("what", "name", "entries", "bytes", "entries_share", "bytes_share", *_NOISY),
            noisy(figures),
            Chart("bar", "name", "entries", apart="what"),
            note="'entries' are messages, events and tasks, 'bytes' those of their payloads.",
        ),
    )


REPORT = Report(
    "slowest",
    "Slowest and noisiest",
    "Which queues, groups and workers take the longest and spend the most time, and which agents,"
    " topics and queues write the most.",
    (ENTRIES, WORK, DURATIONS),
    ("queues", "groups", "workers", "noisiest"),
    build,
    "Nothing was said, published or run in this time.",
)
