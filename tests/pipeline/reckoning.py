"""Reckons in plain Python what the reports on work shall say: slowly, row by row, from the same rows."""

from __future__ import annotations

import datetime
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from agentbus.workers.metrics import Histogram

UTC = datetime.UTC
EVENTS = (
    "received",
    "processed",
    "failed",
    "retried",
    "reclaimed",
    "dead",
    "lost",
    "stale",
    "duplicates",
    "cancelled",
    "released",
    "refused",
)
# After these a worker no longer holds a task.
ENDED = ("processed", "retried", "dead", "stale", "duplicates", "cancelled", "released")
LENGTHS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
SLOTS = {"second": 1, "minute": 60, "hour": 300, "day": 900}
SILENT = 300


def whole(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


def number(text: str | None) -> float:
    try:
        found = float(text or 0)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) and found >= 0 else 0.0


def counts(text: str | None) -> list[int]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    sound = isinstance(found, list) and all(type(n) is int and n >= 0 for n in found)
    return found if sound else []


def percentile(histogram: Histogram, share: float) -> float | None:
    """A percentile in ms; the first bucket says only that it is at most 1 ms."""
    found = histogram.percentile(share) * 1000
    return found if found > 1 else None


def written(payload: str | None) -> int:
    """The bytes of a payload, as it is written."""
    return len((payload or "").encode())


def ratio(part: float, of: float) -> float | None:
    return part / of if of else None


def start(moment: datetime.datetime, seconds: int) -> datetime.datetime:
    at = int(moment.timestamp()) // seconds * seconds
    return datetime.datetime.fromtimestamp(at, UTC)


class Reckoning:
    """All figures of one history."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.rows = [{**row, "fields": dict(row["fields"] or ())} for row in rows]
        entries = [r["time"] for r in self.rows if r["kind"] != "gap" and r["time"]]
        length = max(entries) - min(entries)
        self.ends = (min(entries), max(entries))
        self.bucket = (
            "second"
            if length <= datetime.timedelta(minutes=3)
            else "minute"
            if length <= datetime.timedelta(hours=3)
            else "hour"
            if length <= datetime.timedelta(days=14)
            else "day"
        )
        self.length = LENGTHS[self.bucket]
        self.slot = SLOTS[self.bucket]
        self.metrics = [r for r in self.rows if r["kind"] == "metrics" and r["queue"]]
        self.tasks = [r for r in self.rows if r["kind"] == "queue" and r["queue"]]
        self.channel = [r for r in self.rows if r["kind"] == "channel"]
        self.letters = [r for r in self.rows if r["kind"] == "dead_letter" and r["queue"]]
        self.came: Counter[tuple[str, datetime.datetime]] = Counter()
        for row in self.tasks:
            self.came[row["queue"], start(row["time"], self.slot)] += 1
        for row in self.rows:
            if row["kind"] == "gap" and row["stream"].startswith("q:"):
                queue = row["stream"].split(":")[1].replace("%3A", ":").replace("%25", "%")
                self.came[queue, start(row["time"], self.slot)] += row["lost"] or 0

    def _sums(self, *keys: str) -> dict[tuple, Counter]:
        sums: dict[tuple, Counter] = defaultdict(Counter)
        for row in self.metrics:
            own = {"queue": row["queue"], "time": start(row["time"], self.length)}
            key = tuple(own.get(k) or row["fields"].get(k) or None for k in keys)
            for event in EVENTS:
                sums[key][event] += whole(row["fields"].get(event))
            for spent in ("busy_ms", "waited_ms"):
                sums[key][spent] += number(row["fields"].get(spent))
        return sums

    def _histograms(self, field: str, *keys: str) -> dict[tuple, Histogram]:
        found: dict[tuple, Histogram] = defaultdict(Histogram)
        for row in self.metrics:
            key = tuple(
                row["queue"] if k == "queue" else row["fields"].get(k) or None for k in keys
            )
            found[key].merge(counts(row["fields"].get(field)), 0)
        return {key: one for key, one in found.items() if sum(one.buckets)}

    # -- tasks

    def outcomes(self) -> list[dict]:
        return [
            {
                "queue": queue,
                "group": group,
                "tasks": sums["processed"] + sums["dead"],
                "runs": sums["processed"] + sums["failed"],
                **{event: sums[event] for event in EVENTS},
                "attempts": ratio(
                    sums["processed"] + sums["failed"], sums["processed"] + sums["dead"]
                ),
                "retried_share": ratio(sums["retried"], sums["processed"] + sums["failed"]),
                "dead_share": ratio(sums["dead"], sums["processed"] + sums["dead"]),
                "busy_ms": sums["busy_ms"],
            }
            for (queue, group), sums in self._sums("queue", "group").items()
        ]

    def throughput(self) -> list[dict]:
        sums = self._sums("queue", "time")
        for (queue, slot), n in self.came.items():
            sums[queue, start(slot, self.length)]["published"] += n
        figures = ("published", "received", "processed", "failed", "retried", "dead", "busy_ms")
        return [
            {
                "queue": queue,
                "time": time,
                **{figure: one[figure] for figure in figures},
                "processed_rate": one["processed"] / self.length,
            }
            for (queue, time), one in sums.items()
        ]

    def timings(self) -> list[dict]:
        sums, found = self._sums("queue", "group"), []
        ran, waited = (
            {
                key: sum(one.buckets)
                for key, one in self._histograms(field, "queue", "group").items()
            }
            for field in ("ran", "waited")
        )
        for what, field, spent in (
            ("running", "ran", "busy_ms"),
            ("waiting", "waited", "waited_ms"),
        ):
            for key, histogram in self._histograms(field, "queue", "group").items():
                tasks = sum(histogram.buckets)
                found.append(
                    {
                        "queue": key[0],
                        "group": key[1],
                        "what": what,
                        "tasks": waited.get(key, 0),
                        "runs": ran.get(key, 0),
                        "mean_ms": sums[key][spent] / tasks,
                        "p50_ms": percentile(histogram, 0.5),
                        "p90_ms": percentile(histogram, 0.9),
                        "p99_ms": percentile(histogram, 0.99),
                    }
                )
        return found

    def causes(self) -> list[dict]:
        letters = defaultdict(list)
        for row in self.letters:
            error = row["fields"].get("error", "")
            cause = error.split("\n")[0].split(":")[0].strip(" ")[:80] or None
            letters[row["queue"], row["fields"].get("group") or None].append((cause, row))
        found = []
        for (queue, group), those in letters.items():
            number_of = Counter(cause for cause, _ in those)
            first = sorted(number_of, key=lambda c: (-number_of[c], c is not None, c or ""))[:10]
            for cause in first:
                rows = [row for its, row in those if its == cause]
                tried = [int(t) for r in rows if (t := r["fields"].get("attempts", "")).isdecimal()]
                latest = max(rows, key=lambda r: (r["time"], r["seq"]))
                found.append(
                    {
                        "queue": queue,
                        "group": group,
                        "cause": cause,
                        "dead_letters": len(rows),
                        "dead_letters_share": len(rows) / len(those),
                        "attempts": statistics.fmean(tried) if tried else None,
                        "first": min(r["time"] for r in rows),
                        "last": latest["time"],
                        "latest_error": latest["fields"].get("error", "")[:200],
                    }
                )
        return found

    # -- lag

    def _levels(self) -> dict[tuple, list[tuple]]:
        """Of each queue and group, slot by slot: when, published, settled, what came and went so far."""
        done: Counter[tuple] = Counter()
        groups = defaultdict(set)
        for row in self.metrics:
            if group := row["fields"].get("group"):
                groups[row["queue"]].add(group)
                settled = sum(whole(row["fields"].get(e)) for e in ("processed", "dead", "lost"))
                done[row["queue"], group, start(row["time"], self.slot)] += settled
        slots = defaultdict(set)
        for queue, at in self.came:
            for group in groups[queue] or {None}:
                slots[queue, group].add(at)
        for queue, group, at in done:
            slots[queue, group].add(at)
        for moments in slots.values():
            moments |= {start(at, self.slot) for at in self.ends}
        levels = {}
        for (queue, group), moments in slots.items():
            came = gone = 0
            lines = []
            for at in sorted(moments):
                published, settled = self.came[queue, at], done[queue, group, at]
                came, gone = came + published, gone + settled
                lines.append((at, published, settled, came, gone))
            levels[queue, group] = lines
        return levels

    def lag_groups(self) -> list[dict]:
        levels, found = self._levels(), []
        end = max(line[0] for lines in levels.values() for line in lines)
        for (queue, group), lines in levels.items():
            before = max(0, *(gone - came for *_, came, gone in lines))
            lags = [came - gone + before for *_, came, gone in lines]
            waiting = [line[0] for line in lines if line[3] + before > lines[-1][4]]
            behind = None
            if waiting:
                behind = (end - waiting[0]).total_seconds() * 1000 + self.slot * 1000
            found.append(
                {
                    "queue": queue,
                    "group": group,
                    "published": lines[-1][3],
                    "settled": lines[-1][4],
                    "backlog_before": before,
                    "lag": lags[-1],
                    "behind_ms": behind,
                    "highest": max(lags),
                    "highest_at": lines[lags.index(max(lags))][0],
                }
            )
        return found

    def lag_times(self) -> list[dict]:
        found = []
        for (queue, group), lines in self._levels().items():
            before = max(0, *(gone - came for *_, came, gone in lines))
            lag, at, end = 0, start(lines[0][0], self.length), lines[-1][0]
            while at <= end:
                those = [line for line in lines if start(line[0], self.length) == at]
                lags = [came - gone + before for *_, came, gone in those] or [lag]
                lag = lags[-1]
                row = {
                    "queue": queue,
                    "group": group,
                    "time": at,
                    "published": sum(line[1] for line in those),
                    "settled": sum(line[2] for line in those),
                    "lag": lag,
                    "highest": max(lags),
                }
                if row["published"] or row["settled"] or row["highest"]:
                    found.append(row)
                at += datetime.timedelta(seconds=self.length)
        return found

    def workers(self, *, all: bool = False) -> list[dict]:
        end = max((row["time"] for row in self.metrics), default=None)
        sums, found = self._sums("queue", "group", "worker"), []
        for (queue, group, worker), one in sums.items():
            if worker is None:
                continue
            its = [
                row
                for row in self.metrics
                if (row["queue"], row["fields"].get("group") or None, row["fields"].get("worker"))
                == (queue, group, worker)
            ]
            last = max(row["time"] for row in its)
            ended = sum(one[event] for event in ENDED)
            held = max(0, one["received"] - ended)
            vanished = held > 0 and (end - last).total_seconds() > SILENT
            if all or vanished or one["reclaimed"] or one["lost"] or one["stale"]:
                found.append(
                    {
                        "queue": queue,
                        "group": group,
                        "worker": worker,
                        "agent": max((r["agent"] for r in its if r["agent"]), default=None),
                        "first": min(row["time"] for row in its),
                        "last": last,
                        "vanished": vanished,
                        "held": held,
                        **{
                            event: one[event]
                            for event in ("received", "processed", "reclaimed", "lost", "stale")
                        },
                    }
                )
        return found

    def crashes(self) -> list[dict]:
        sums = self._sums("queue", "group", "time")
        for one in self.workers(all=True):
            if one["vanished"]:
                at = start(one["last"], self.length)
                sums[one["queue"], one["group"], at]["vanished"] += 1
        figures = ("reclaimed", "lost", "stale", "vanished")
        return [
            {
                "queue": queue,
                "group": group,
                "time": time,
                **{figure: one[figure] for figure in figures},
            }
            for (queue, group, time), one in sums.items()
            if any(one[figure] for figure in figures)
        ]

    # -- slowest

    def slow(self, *keys: str) -> list[dict]:
        sums, found = self._sums(*keys), []
        agents = {(w["queue"], w["group"], w["worker"]): w["agent"] for w in self.workers(all=True)}
        for key, histogram in self._histograms("ran", *keys).items():
            runs = sum(histogram.buckets)
            one = {
                **dict(zip(keys, key, strict=True)),
                "runs": runs,
                "mean_ms": sums[key]["busy_ms"] / runs,
                "p50_ms": percentile(histogram, 0.5),
                "p99_ms": percentile(histogram, 0.99),
                "busy_ms": sums[key]["busy_ms"],
            }
            if "worker" in keys:
                one["agent"] = agents.get(key)
            found.append(one)
        return found

    def noisy(self) -> list[dict]:
        found = []
        for what in ("agent", "topic", "queue"):
            entries: Counter[str] = Counter()
            size: Counter[str] = Counter()
            for row in self.channel + [r for r in self.rows if r["kind"] == "queue"]:
                if row[what]:
                    entries[row[what]] += 1
                    size[row[what]] += written(row["payload"])
            found += [
                {
                    "what": what,
                    "name": name,
                    "entries": entries[name],
                    "bytes": size[name],
                    "entries_share": entries[name] / entries.total(),
                    "bytes_share": ratio(size[name], size.total()),
                }
                for name in entries
            ]
        return found

    # -- anomalies

    def judged(self) -> list[dict]:
        series: dict[tuple, Counter[int]] = defaultdict(Counter)
        for row in self.channel + [r for r in self.rows if r["kind"] == "queue"]:
            for what in ("queue", "topic"):
                if row[what]:
                    series[what, row[what], "entries"][_hour(row)] += 1
        for row in self.metrics:
            for figure in ("processed", "failed"):
                named = series["queue", row["queue"], figure]
                named[_hour(row)] += whole(row["fields"].get(figure))
        hours = {hour for one in series.values() for hour in one}
        found = []
        for (what, name, figure), one in series.items():
            since = max(min(one), min(hours) + 1)
            for hour in range(since, max(hours)):
                before = [one[h] for h in range(hour - 24, since - 1, -24)][:28]
                if len(before) < 3:
                    continue
                expected = statistics.median(before)
                distance = statistics.median(abs(n - expected) for n in before)
                deviation = max(1.4826 * distance, math.sqrt(expected), 1)
                found.append(
                    {
                        "what": what,
                        "name": name,
                        "figure": figure,
                        "time": datetime.datetime.fromtimestamp(hour * 3600, UTC),
                        "number": one[hour],
                        "expected": expected,
                        "low": max(0, expected - 3.5 * deviation),
                        "high": expected + 3.5 * deviation,
                        "score": (one[hour] - expected) / deviation,
                        "days": len(before),
                    }
                )
        return found


def _hour(row: dict[str, Any]) -> int:
    return int(row["time"].timestamp()) // 3600
