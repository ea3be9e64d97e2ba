"""Histories of talk made up from a seed, as rows of the schema: what the tests of reports read."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from agentbus.pipeline.rows import schema

START = datetime(2025, 11, 20, 7, 0, tzinfo=UTC)
HOSTILE = ("<script>alert(1)</script>", "\"' onload=x", "\u202eadb\u202c %s {0}", "é" * 128)


def row(stream: str, kind: str, ms: int, seq: int = 0, **values: Any) -> dict[str, Any]:
    """Return one row; what is not given is null, and `fields` empty."""
    time = START + timedelta(milliseconds=ms)
    base: dict[str, Any] = dict.fromkeys(schema.COLUMNS)
    number = round(time.timestamp() * 1000)
    base |= {"version": 1, "stream": stream, "kind": kind, "id": f"{number}-{seq}"}
    base |= {"time": time, "seq": seq, "fields": {}}
    return base | values


def said(agent: str, ms: int, topic: str | None = None, text: str = "hi", seq: int = 0, **fields):
    """Return a message, or with `event` and its fields what the bus said."""
    event = fields.pop("event", None)
    payload = json.dumps(text, ensure_ascii=False)
    given = {"agent": agent, "topic": topic, "event": event, "payload": payload}
    return row(
        "ch:main", "channel", ms, seq, **given, fields={k: str(v) for k, v in fields.items()}
    )


def task(queue: str, ms: int, agent: str | None = None, seq: int = 0, **meta: Any):
    """Return a task with its envelope."""
    meta = {"source": agent, **meta} if agent else meta
    given = {"queue": queue, "agent": agent, "payload": '{"n":1}'}
    given |= {"topic": meta.get("topic"), "correlation_id": meta.get("correlation_id")}
    fields = {"meta": json.dumps(meta, separators=(",", ":"))} if meta else {}
    return row(f"q:{queue}", "queue", ms, seq, **given, fields=fields)


def gap(stream: str, ms: int, lost: int):
    """Return a gap."""
    return row(stream, "gap", ms, lost=lost)


def frame(spark: SparkSession, rows: Sequence[dict[str, Any]]) -> DataFrame:
    """Return rows as a frame, in no order and in several parts, as files are read."""
    shuffled = list(rows)
    random.Random(1).shuffle(shuffled)
    table = pa.Table.from_pylist(shuffled, schema=schema.ARROW)
    return spark.createDataFrame(table).repartition(3)


def history(seed: int, length: int, hours: float = 30.0) -> list[dict[str, Any]]:
    """Return so many entries of a made-up day: talk, flags, requests with and without replies."""
    chance = random.Random(seed)
    agents = [f"agent-{n}" for n in range(chance.randint(2, 12))] + [HOSTILE[seed % len(HOSTILE)]]
    topics = [None, None, *(f"topic-{n}" for n in range(chance.randint(1, 5)))]
    flags = [f"flag-{n}" for n in range(chance.randint(1, 6))]
    tokens = dict.fromkeys(flags, 0)
    rows: list[dict[str, Any]] = []
    ms, seq = 0, 0
    step = hours * 3_600_000 / length
    while len(rows) < length:
        # Bursts and pauses; and often several entries in one millisecond.
        wait = int(chance.expovariate(1 / step)) if chance.random() < 0.8 else 0
        ms, seq = ms + wait, 0 if wait else seq + 1
        who, kind = chance.choice(agents), chance.random()
        if kind < 0.55:
            rows.append(said(who, ms, chance.choice(topics), "é" * chance.randint(1, 50), seq))
        elif kind < 0.75:
            rows.append(_flag(chance, who, chance.choice(flags), tokens, ms, seq))
        else:
            rows.append(_task(chance, who, rows, ms, seq))
    return rows


def _flag(chance: random.Random, who: str, flag: str, tokens: dict[str, int], ms: int, seq: int):
    event = chance.choice(["announced", "announced", "satisfied", "released", "renewed"])
    fields: dict[str, Any] = {"flag": flag}
    if event == "announced" or (event == "satisfied" and chance.random() < 0.3):
        tokens[flag] += 1
    if event == "announced" and chance.random() < 0.3:
        fields["forced_from"] = "agent-0"
    if event != "renewed" and chance.random() < 0.9:
        fields["token"] = tokens[flag]
    return said(who, ms, "coordination", f"{event} {flag}", seq, event=event, **fields)


def _task(chance: random.Random, who: str, rows: list[dict[str, Any]], ms: int, seq: int):
    asked = [one for one in rows[-40:] if "reply_to" in (one["fields"].get("meta") or "")]
    if asked and chance.random() < 0.5:
        request = chance.choice(asked)
        meta = json.loads(request["fields"]["meta"])
        task_id = f"{request['id']}@{request['stream'][2:]}"
        about = {"correlation_id": meta.get("correlation_id", task_id), "causation_id": task_id}
        return task(meta["reply_to"], ms, None, seq, **about)
    meta = {}
    if chance.random() < 0.4:
        meta["reply_to"] = chance.choice(["answers", "other", "~replies.abc"])
        if chance.random() < 0.5:
            meta["correlation_id"] = f"order-{chance.randint(1, 30)}"
    return task(chance.choice(["mail", "build"]), ms, chance.choice([who, None]), seq, **meta)
