"""Anomalies: hours in which a queue or topic differed from the same hour of earlier days.

Each full hour is compared with the same hour (UTC) of earlier days by the median and the median
distance from it, which a single unusual day does not change. An hour without rows counts as 0.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from agentbus.pipeline.reports.aggregate import Figures, Row, moment
from agentbus.pipeline.reports.arithmetic import ordered
from agentbus.pipeline.reports.entries import (
    ENTRIES,
    HOUR,
    counted,
    slot_seconds,
    talk_seconds,
)
from agentbus.pipeline.reports.report import Chart, Report, Table
from agentbus.pipeline.reports.work import WORK, by_slot

# Maps (queue or topic, its name, figure) to counts by hour.
Hourly: TypeAlias = "Mapping[tuple[str, str, str], dict[int, int]]"

# Minimum and maximum number of earlier days with which an hour is compared.
LEAST_DAYS, MOST_DAYS = 3, 28
# A score above this number of deviations from the median is an anomaly.
ODD = 3.5
# The factor from a median distance to the standard deviation in a normal distribution.
_NORMAL = 1.4826
# Maximum number of queues and topics to examine, those with the most entries.
MOST = 500
_KEYS = ("what", "name", "figure")
_COLUMNS = (*_KEYS, "time", "number", "direction", "expected", "low", "high", "score", "days")


def hourly(figures: Figures) -> Hourly:
    """Return the numbers of entries, and of tasks done and failed, by name and hour."""
    found: dict[tuple[str, str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    seconds = {"queue": slot_seconds(figures.span), "topic": talk_seconds(figures.span)}
    for what, length in seconds.items():
        for row in counted(figures, what):
            if row["name"] and row["slot"] is not None:
                entries = row["messages"] + row["events"] + row["tasks"]
                found[what, row["name"], "entries"][row["slot"] * length // HOUR] += entries
    for row in by_slot(figures):
        if row["slot"] is not None:
            hour = row["slot"] * seconds["queue"] // HOUR
            for figure in ("processed", "failed"):
                found["queue", row["queue"], figure][hour] += row[figure] or 0
    return found


def _examined(counts: Hourly) -> Iterator[tuple[str, str, str]]:
    """Yield the names with the highest totals."""
    ranked = sorted(counts, key=lambda key: (key[0], key[2], -sum(counts[key].values()), key[1]))
    places: dict[tuple[str, str], int] = defaultdict(int)
    for what, name, figure in ranked:
        places[what, figure] += 1
        if places[what, figure] <= MOST:
            yield what, name, figure


def judged(figures: Figures, *, all: bool = True) -> Iterator[Row]:
    """Yield full hours that have three earlier days, with their expected values and scores.

    `expected` is the median of the same hour of up to 28 days before; `low` and `high` are 3.5
    deviations below and above. A deviation is 1.4826 times the median distance from the median, but
    at least the square root of the median (the random variation of counts), and at least 1.

    The hours of the first and the last entry are omitted, since they may be incomplete, as are
    hours with a count of 0 on all days. A name's days begin with its first entry. Without `all`
    only anomalous hours are returned.
    """
    counts = hourly(figures)
    hours = {hour for series in counts.values() for hour in series}
    first, last = min(hours, default=0), max(hours, default=0)
    for key in _examined(counts):
        series = counts[key]
        since = max(min(series), first + 1)
        # All other hours are 0, as is their expected value.
        touched = {hour + 24 * day for hour in series for day in range(MOST_DAYS + 1)}
        for hour in sorted(one for one in touched if since <= one < last):
            earliest = max(since, hour - 24 * MOST_DAYS)
            before = [series.get(one, 0) for one in range(hour - 24, earliest - 1, -24)]
            if len(before) < LEAST_DAYS:
                continue
            number, expected = series.get(hour, 0), float(statistics.median(before))
            chance = max(math.sqrt(expected), 1.0)
            if not all and abs(number - expected) <= ODD * chance:
                continue
            distance = statistics.median(abs(one - expected) for one in before)
            deviation = max(_NORMAL * distance, chance)
            score = (number - expected) / deviation
            if all or abs(score) > ODD:
                yield {
                    **dict(zip(_KEYS, key, strict=True)),
                    "time": moment(hour * HOUR),
                    "number": number,
                    "direction": "more" if score > 0 else "less",
                    "expected": expected,
                    "low": max(expected - ODD * deviation, 0.0),
                    "high": expected + ODD * deviation,
                    "score": score,
                    "days": len(before),
                }


def odd(figures: Figures) -> list[Row]:
    """Return the anomalous hours, highest score first; `direction` is `more` or `less`."""
    found = ordered(judged(figures, all=False), "time", *_KEYS)
    return sorted(found, key=lambda row: -abs(row["score"]))


def build(figures: Figures) -> Sequence[Table]:
    """Return the table of anomalous hours."""
    return (
        Table(
            "hours",
            "Odd hours",
            _COLUMNS,
            odd(figures),
            Chart("line", "time", "score", series=("what", "name", "figure"), bucket="hour"),
            note="Each full hour against the same hour (UTC) of up to 28 earlier days, at least 3. A score"
            f" beyond {ODD} deviations from their median is odd.",
        ),
    )


REPORT = Report(
    "anomalies",
    "Anomalies",
    "In which hours a queue or a topic had far more or fewer entries, or a queue's workers did or"
    " failed far more or fewer tasks, than in the same hour of earlier days.",
    (ENTRIES, WORK),
    ("hours",),
    build,
    "No hour was unlike the same hour of earlier days, or fewer than 3 earlier days are known.",
)
