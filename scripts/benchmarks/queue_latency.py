"""The time from publish to the handler, against XADD and a blocking XREADGROUP.

Publisher and consumer are two processes; both kinds of consumer are there all the time, and take
turns. The publisher notes the time before it sends, the handler the time at which it is called, on
the clock that all processes share. The next task is sent when all readers wait again.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import orjson
import redis

import agentbus
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, table
from scripts.benchmarks.queue_raw import GROUP, payload
from tests.servers import Server

_WARM = 20
_STREAM = "raw:latency"
_BY_HAND = "XADD, blocking XREADGROUP"


def _ours(url: str, pipe: Connection) -> None:
    bus = agentbus.connect(url, project="latency", agent="worker")

    def handler(delivery: Any) -> None:
        now = time.monotonic()
        pipe.send(now - delivery.payload["at"])

    bus.subscribe("latency", handler).run()


def _late(url: str, pipe: Connection) -> None:
    bus = agentbus.connect(url, project="late", agent="worker")
    bus.subscribe("late", lambda d: pipe.send(time.monotonic() - d.payload["due"])).run()


def _theirs(path: str, pipe: Connection) -> None:
    server = redis.Redis(unix_socket_path=path, protocol=2, socket_timeout=60)
    while True:
        reply: Any = server.xreadgroup(GROUP, "c", {_STREAM: ">"}, count=500, block=30_000)
        for entry_id, fields in reply[0][1]:
            at = orjson.loads(fields[b"payload"])["at"]
            pipe.send(time.monotonic() - at)
            server.xack(_STREAM, GROUP, entry_id)


def latency(server: Server, rounds: int) -> Iterator[Figure]:
    """One task at a time, to a worker that waits."""
    took = _in_turns(server, rounds)
    lines, rows = [], []
    for part, wanted in ((50, "1.2"), (99, "2")):
        mine, base = (percentile(took[what], part) for what in ("agentbus", "raw"))
        lines.append(
            [f"p{part}", f"{mine:.3f}", f"{base:.3f}", f"{mine / base:.2f}", f"<= {wanted}"]
        )
        group = f"p{part}"
        by_hand = Row(_BY_HAND, Spread.at(part, took["raw"]), "baseline", group=group)
        ours = Row(
            "publish, worker",
            Spread.at(part, took["agentbus"]),
            ratio=mine / base,
            against=_BY_HAND,
            wanted=f"≤ {wanted}",
            group=group,
        )
        rows += [by_hand, ours]
    head = ["", "agentbus ms", "raw ms", "ratio", "wanted"]
    table(f"from publish to the handler, {rounds:,} tasks", head, lines)
    yield Figure(
        name="queue-latency",
        source="queue_latency.latency",
        title="From publish to the handler",
        measured=f"between two processes, {rounds:,} tasks each, in turns",
        unit="ms",
        better="less",
        rows=tuple(rows),
    )


def lateness(server: Server, rounds: int) -> Iterator[Figure]:
    """How late delayed tasks arrive at a worker that is otherwise idle."""
    late = _lateness(server, rounds)
    found = [f"{percentile(late, part):.2f}" for part in (50, 99, 100)]
    table(
        f"milliseconds by which {rounds} delayed tasks were late",
        ["p50", "p99", "max", "wanted"],
        [[*found, "<= 50"]],
    )
    yield Figure(
        name="queue-lateness",
        source="queue_latency.lateness",
        title="By how much delayed tasks are late",
        measured=f"{rounds} tasks with delays of 20 to 80 ms",
        unit="ms",
        better="less",
        rows=tuple(
            Row(name, Spread.at(part, late), wanted="≤ 50")
            for name, part in (("p50", 50), ("p99", 99), ("latest", 100))
        ),
    )


def _in_turns(server: Server, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds that each round took."""
    server.ask("FLUSHALL")
    spawn = multiprocessing.get_context("spawn")
    raw = redis.Redis(unix_socket_path=server.socket, protocol=2)
    raw.xgroup_create(_STREAM, GROUP, "0", mkstream=True)
    took: dict[str, list[float]] = {"raw": [], "agentbus": []}
    pipes, children = {}, []
    for what, run, where in (("raw", _theirs, server.socket), ("agentbus", _ours, server.url)):
        pipes[what], theirs = spawn.Pipe()
        children.append(spawn.Process(target=run, args=(where, theirs), daemon=True))
        children[-1].start()
    try:
        with agentbus.connect(server.url, project="latency", agent="publisher") as bus:
            queue = bus.queue("latency")
            for turn in range(2 * (rounds + _WARM)):
                what = "raw" if turn % 2 else "agentbus"
                # The raw reader, and the worker.
                while b"blocked_clients:2" not in server.ask("INFO", "clients"):
                    time.sleep(0.0005)
                body = payload(turn)
                if what == "raw":
                    body["at"] = time.monotonic()
                    raw.xadd(_STREAM, {"payload": orjson.dumps(body)})
                else:
                    body["at"] = time.monotonic()
                    queue.publish(body)
                delay = pipes[what].recv() * 1000
                if turn >= 2 * _WARM:
                    took[what].append(delay)
    finally:
        for child in children:
            child.kill()
            child.join()
    return took


def _lateness(server: Server, rounds: int) -> list[float]:
    """Return by how many milliseconds delayed tasks came late."""
    server.ask("FLUSHALL")
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    child = spawn.Process(target=_late, args=(server.url, theirs), daemon=True)
    child.start()
    late = []
    try:
        with agentbus.connect(server.url, project="late", agent="publisher") as bus:
            queue = bus.queue("late")
            for turn in range(rounds + _WARM):
                delay = 0.02 + turn % 7 / 100
                queue.publish({"due": time.monotonic() + delay}, delay=delay)
                found = pipe.recv() * 1000
                if turn >= _WARM:
                    late.append(found)
    finally:
        child.kill()
        child.join()
    return late
