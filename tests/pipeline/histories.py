"""Makes histories: rows of the schema as a busy project leaves them, millions in seconds.

By hand: `python -m tests.pipeline.histories PATH ROWS [DAYS]` writes one as Parquet files.
"""

from __future__ import annotations

import datetime
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from agentbus.pipeline.rows import schema

START = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
CHUNK = 200_000
AGENTS = tuple(f"agent-{n}" for n in range(24))
TOPICS = ("build", "test", "deploy", "review", "coordination", "docs", "ops", "news", "a:b", "ü")
QUEUES = ("mail", "index", "build", "render", "bill", "sync", "audit:log", "100%")
FLAGS = tuple(f"flag-{n}" for n in range(9))
CAUSES = (
    "ConnectionError: the peer went away",
    "ValueError: no such account",
    "TimeoutError",
    "it was not acknowledged in any of its 5 attempts",
    "the entry is malformed: unexpected end of data: line 1 column 1 (char 0)",
)
# Of a thousand rows so many are of each kind; the rest are tasks. Now and then there is a gap.
_CHANNEL, _METRICS, _DEAD = 200, 140, 10
# How much is going on in each hour of the day.
_CURVE = (1, 1, 1, 1, 1, 2, 3, 5, 7, 8, 8, 7, 6, 7, 8, 8, 7, 6, 4, 3, 3, 2, 2, 1)
_WORKERS = 4
_TWICE, _CRASHED = QUEUES.index("audit:log"), QUEUES.index("render")
_TRACE = "Traceback (most recent call last):\n" + '  File "handlers.py", line 7, in run\n' * 8


def history(rows: int, seed: int = 0, days: float = 7) -> pa.Table:
    """Return so many rows of all kinds, the same for the same seed, in order of time by chunk."""
    return pa.concat_tables(chunks(rows, seed, days)) if rows else schema.ARROW.empty_table()


def chunks(rows: int, seed: int = 0, days: float = 7) -> Iterator[pa.Table]:
    """Yield the rows of a history in pieces, each of the time after the one before."""
    count = max(1, -(-rows // CHUNK))
    minutes = _minutes(days)
    done = 0
    for number in range(count):
        size = rows * (number + 1) // count - done
        yield _Chunk(
            seed * 1_000_003 + number, size, done, minutes, number / count, 1 / count
        ).table()
        done += size


def write(path: str, rows: int, seed: int = 0, days: float = 7) -> None:
    """Write a history as `kind=…/date=…/….parquet` under a path."""
    for number, table in enumerate(chunks(rows, seed, days)):
        date = pc.cast(table["time"], pa.date32())
        ds.write_dataset(
            table.append_column("date", date),
            path,
            format="parquet",
            partitioning=ds.partitioning(
                pa.schema([("kind", pa.string()), ("date", pa.date32())]), flavor="hive"
            ),
            basename_template=f"{number:06d}-{{i}}.parquet",
            file_options=ds.ParquetFileFormat().make_write_options(compression="zstd"),
            existing_data_behavior="overwrite_or_ignore",
            max_partitions=10_000,
        )


def _minutes(days: float) -> pa.Array:
    """Minutes since the start, each as often as its hour's share; in one hour near the end far more."""
    found: list[int] = []
    every = max(1, round(days * 1440))
    for minute in range(every):
        surge = 6 if every > 1440 and minute // 60 == every // 60 - 6 else 1
        found += [minute] * (_CURVE[minute // 60 % 24] * surge)
    return pa.array(found, pa.int64())


class _Chunk:
    """One piece: the rows of a share of the time."""

    def __init__(
        self, seed: int, size: int, offset: int, minutes: pa.Array, start: float, share: float
    ) -> None:
        self.random = random.Random(seed)
        self.size = size
        self.offset = offset
        self.minutes = minutes
        self.start = start
        self.share = share

    def table(self) -> pa.Table:
        channel, metrics, dead = (self.size * part // 1000 for part in (_CHANNEL, _METRICS, _DEAD))
        gaps = 1 if self.size >= 1000 else 0
        parts = [
            self._channel(channel),
            self._metrics(metrics),
            self._dead(dead),
            self._gaps(gaps),
            self._queue(self.size - channel - metrics - dead - gaps),
        ]
        return (
            pa.concat_tables([part for part in parts if part.num_rows])
            if self.size
            else (schema.ARROW.empty_table())
        )

    def _shares(self, n: int) -> pa.Array:
        return pc.random(n, initializer=self.random.getrandbits(60))

    def _numbers(self, n: int, below: int, skew: float = 1) -> pa.Array:
        """Numbers from 0; with a skew the small ones are more frequent."""
        share = pc.power(self._shares(n), skew)
        return pc.cast(pc.floor(pc.multiply(share, float(below))), pa.int64())

    def _times(self, n: int) -> pa.Array:
        """Milliseconds in ascending order."""
        at = pc.add(pc.multiply(self._shares(n), self.share), self.start)
        place = pc.cast(pc.floor(pc.multiply(at, float(len(self.minutes)))), pa.int64())
        minute = self.minutes.take(pc.min_element_wise(place, len(self.minutes) - 1))
        within = self._numbers(n, 60_000)
        ms = pc.add(pc.add(pc.multiply(minute, 60_000), within), int(START.timestamp() * 1000))
        return ms.take(pc.sort_indices(ms))

    def _rows(self, kind: str, ms: pa.Array, **columns: Any) -> pa.Table:
        n = len(ms)
        # No two rows of one millisecond have the same number.
        seq = pa.array([(self.offset + i) % 1000 for i in range(n)], pa.int64())
        columns |= {
            "version": _same(schema.VERSION, n, pa.int32()),
            "kind": _same(kind, n),
            "time": pc.cast(pc.multiply(ms, 1000), pa.timestamp("us", tz="UTC")),
            "seq": seq,
            "id": _joined(ms, "-", seq),
        }
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(n, field.type)
            for field in schema.ARROW
        ]
        return pa.Table.from_arrays(arrays, schema=schema.ARROW)

    def _channel(self, n: int) -> pa.Table:
        ms = self._times(n)
        index = pa.array(range(n), pa.int64())
        # Each twelfth row is an event of a flag: of two in turn one announces, one ends the hold.
        turn = pc.divide(index, 12)
        told = pc.equal(pc.subtract(index, pc.multiply(turn, 12)), 0)
        hold = pc.add(pc.divide(turn, 2), self.offset)
        ends = pc.equal(pc.bit_wise_and(turn, 1), 1)
        ended = _take(("satisfied", "satisfied", "released"), _modulo(hold, 3))
        event = pc.if_else(told, pc.if_else(ends, ended, "announced"), None)
        agent = pc.if_else(told, _modulo(hold, len(AGENTS)), self._numbers(n, len(AGENTS), 1.7))
        topic = pc.if_else(
            pc.greater(self._shares(n), 0.05),
            _take(TOPICS, self._numbers(n, len(TOPICS), 1.4)),
            None,
        )
        flag = pc.if_else(told, _take(FLAGS, _modulo(hold, len(FLAGS))), None)
        token = pc.if_else(told, pc.cast(hold, pa.string()), None)
        return self._rows(
            schema.CHANNEL,
            ms,
            stream=_same("ch:main", n),
            agent=_take(AGENTS, agent),
            topic=pc.if_else(told, "coordination", topic),
            event=event,
            payload=_joined('"', self._texts(n, 20, 160), '"'),
            fields=_maps({"flag": flag, "token": token}),
        )

    def _texts(self, n: int, least: int, most: int) -> pa.Array:
        letters = "abcdefgh ijklmnop qrstuvwxyz"
        pool = [
            "".join(self.random.choices(letters, k=self.random.randint(least, most)))
            for _ in range(500)
        ]
        return _take(pool, self._numbers(n, len(pool)))

    def _meta(self, n: int, ms: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """The rest of the envelope, and what the columns repeat of it: agent, topic, correlation id."""
        there = pc.greater(self._shares(n), 0.4)
        agent = pc.if_else(there, _take(AGENTS, self._numbers(n, len(AGENTS), 2)), None)
        topic = pc.if_else(there, _take(TOPICS, self._numbers(n, len(TOPICS), 1.4)), None)
        correlation = pc.if_else(there, _joined("c", self._numbers(n, max(1, n // 3))), None)
        meta = _joined(
            *('{"source":"', agent, '","topic":"', topic, '","correlation_id":"', correlation),
            *('","created_at":', pc.cast(pc.divide(ms, 1000), pa.string()), ".5}"),
        )
        return meta, agent, topic, correlation

    def _queue(self, n: int) -> pa.Table:
        ms = self._times(n)
        meta, agent, topic, correlation = self._meta(n, ms)
        number = self._numbers(n, len(QUEUES), 1.5)
        priority = _take(("", "", "", "", ":high", ":low"), self._numbers(n, 6))
        count = pa.array(range(self.offset, self.offset + n), pa.int64())
        return self._rows(
            schema.QUEUE,
            ms,
            stream=_joined("q:", _take([_encoded(q) for q in QUEUES], number), priority),
            queue=_take(QUEUES, number),
            agent=agent,
            topic=topic,
            correlation_id=correlation,
            payload=_joined('{"n":', count, ',"text":"', self._texts(n, 60, 260), '"}'),
            fields=_maps({"meta": meta}),
        )

    def _dead(self, n: int) -> pa.Table:
        ms = self._times(n)
        meta, agent, topic, correlation = self._meta(n, ms)
        number = self._numbers(n, len(QUEUES), 3)
        cause = self._numbers(n, len(CAUSES), 2)
        failed = pc.strftime(
            pc.cast(pc.multiply(ms, 1000), pa.timestamp("us")), format="%Y-%m-%dT%H:%M:%SZ"
        )
        first = pc.subtract(ms, self._numbers(n, 600_000))
        where = _take([_encoded(q) for q in QUEUES], number)
        return self._rows(
            schema.DEAD_LETTER,
            ms,
            stream=_joined("dlq:", where, ":default"),
            queue=_take(QUEUES, number),
            agent=agent,
            topic=topic,
            correlation_id=correlation,
            payload=_joined('{"text":"', self._texts(n, 60, 260), '"}'),
            fields=_maps(
                {
                    "meta": meta,
                    "group": _same("default", n),
                    "priority": _same("normal", n),
                    "original_id": _joined(first, "-0"),
                    "task_id": _joined(first, "-0@", where),
                    "attempts": _take("12345", self._numbers(n, 5)),
                    "error": _take(CAUSES, cause),
                    "traceback": _same(_TRACE, n),
                    "failed_at": failed,
                }
            ),
        )

    def _metrics(self, n: int) -> pa.Table:
        ms = self._times(n)
        number = self._numbers(n, len(QUEUES), 1.5)
        # One queue has two groups that share its time, so both fall behind. Late in the history one
        # worker of one queue is there no longer, and another in its place.
        second = pc.and_(pc.equal(number, _TWICE), pc.greater(self._shares(n), 0.5))
        group = pc.if_else(second, "audit", "default")
        worker = self._numbers(n, _WORKERS)
        gone = pc.and_(pc.equal(number, _CRASHED), pc.equal(worker, 0))
        worker = pc.if_else(gone, _WORKERS if self.start > 0.7 else 0, worker)
        pool = _samples(self.random, 600)
        # The queues differ in how long their tasks run.
        sample = pc.add(self._numbers(n, 75), pc.multiply(number, 75))
        refusal = pc.greater(self._shares(n), 0.99)
        queue = _take(QUEUES, number)
        fields = {
            "version": _same("1", n),
            "group": group,
            "worker": _joined("host:", queue, ":", group, ":", worker),
            "from": pc.cast(pc.subtract(ms, 1000), pa.string()),
            "to": pc.cast(ms, pa.string()),
            **{name: _take(values, sample) for name, values in pool.items()},
        }
        refused = pc.cast(pc.add(self._numbers(n, 20), 1), pa.string())
        for name in fields.keys() - {"version", "from", "to"}:
            fields[name] = pc.if_else(refusal, None, fields[name])
        fields["refused"] = pc.if_else(refusal, refused, None)
        return self._rows(
            schema.METRICS,
            ms,
            stream=_same("metrics", n),
            event=pc.if_else(refusal, "refusal", "work"),
            queue=queue,
            agent=pc.if_else(refusal, None, _take(AGENTS, pc.add(worker, _modulo(number, 8)))),
            fields=_maps(fields),
        )

    def _gaps(self, n: int) -> pa.Table:
        ms = self._times(n)
        lost = pc.add(self._numbers(n, 50), 1)
        before = pc.subtract(ms, 5000)
        return self._rows(
            schema.GAP,
            ms,
            stream=_joined("q:", _take([_encoded(q) for q in QUEUES], self._numbers(n, 3))),
            lost=lost,
            fields=_maps({"after": _joined(before, "-0"), "before": _joined(ms, "-9")}),
        )


def _samples(rng: random.Random, count: int) -> dict[str, list[str | None]]:
    """What workers count in a second: a pool, the slower ones later in it."""
    pool: dict[str, list[str | None]] = {}
    for at in range(count):
        done, failed = rng.randint(1, 8), max(0, rng.randint(-12, 2))
        retried = failed - (dead := min(failed, max(0, rng.randint(-4, 1))))
        lists, spent = [], []
        for scale in (2 + at * 9 / count, rng.choice((3, 6, 12))):
            buckets = [0] * 24
            total = 0.0
            for _ in range(done + failed):
                bucket = min(23, max(0, round(rng.gauss(scale, 1.5))))
                buckets[bucket] += 1
                total += 0.75 * 2**bucket
            while buckets and not buckets[-1]:
                buckets.pop()
            lists.append("[" + ",".join(map(str, buckets)) + "]")
            spent.append(f"{total:.3f}")
        counts = {
            # Now and then a task is still running when the worker tells, or was given back.
            "received": done + failed + int((chance := rng.random()) < 0.04),
            "processed": done,
            "failed": failed,
            "retried": retried,
            "dead": dead,
            "reclaimed": int(rng.random() < 0.02),
            "lost": int(rng.random() < 0.005),
            "stale": int(rng.random() < 0.01),
            "released": int(0.02 <= chance < 0.03),
            "cancelled": int(0.03 <= chance < 0.035),
            "duplicates": int(0.035 <= chance < 0.04),
        }
        sample = {name: str(number) if number else None for name, number in counts.items()} | {
            "ran": lists[0],
            "busy_ms": spent[0],
            "waited": lists[1],
            "waited_ms": spent[1],
        }
        for name, value in sample.items():
            pool.setdefault(name, []).append(value)
    return pool


def _encoded(name: str) -> str:
    return name.replace("%", "%25").replace(":", "%3A")


def _same(value: Any, n: int, kind: pa.DataType | None = None) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind or pa.string()), n)


def _take(pool: Sequence[str | None], index: pa.Array) -> pa.Array:
    return pa.array(pool, pa.string()).take(index)


def _modulo(numbers: pa.Array, by: int) -> pa.Array:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, by), by))


def _joined(*parts: Any) -> pa.Array:
    """Join texts and numbers row by row; null if one of them is."""
    texts = [p if isinstance(p, str) else pc.cast(p, pa.string()) for p in parts]
    return pc.binary_join_element_wise(*texts, "")


def _maps(columns: dict[str, pa.Array]) -> pa.Array:
    """A map of each row: the names with what is not null."""
    names, arrays = list(columns), list(columns.values())
    n, width = len(arrays[0]), len(arrays)
    order = pa.array([at * n + row for row in range(n) for at in range(width)], pa.int64())
    values = pa.concat_arrays([pc.cast(array, pa.string()) for array in arrays]).take(order)
    keys = pa.array(names, pa.string()).take(pa.array(list(range(width)) * n, pa.int64()))
    there = pc.is_valid(values)
    counts = pc.cast(arrays[0].is_valid(), pa.int32())
    for array in arrays[1:]:
        counts = pc.add(counts, pc.cast(array.is_valid(), pa.int32()))
    ends = pc.cast(pc.cumulative_sum(counts), pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.MapArray.from_arrays(offsets, keys.filter(there), values.filter(there))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), days=float((*sys.argv[3:], "30")[0]))
