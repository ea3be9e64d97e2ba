"""How quickly an awaiter wakes: from `satisfy` to `await_`'s return, against a raw XREAD wake-up.

Both are measured between two processes on the same server, in turns: the waker notes the time before
it sends, the sleeper the time after it returns, on the clock that all processes share. The server writes
its append-only file to disk before it answers, as the embedded one does.

    python -m scripts.benchmarks.wakeup [--rounds N] [--crowds N]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import pathlib
import socket
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import hiredis

import agentbus
import agentbus.aio
from agentbus.errors import FlagFailed
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import Server

SIZES = {"quick": {"rounds": 40, "crowds": 2}, "page": {}}
CROWD = 200


class Raw:
    """A bare connection: hiredis and a socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.reader = hiredis.Reader()

    def ask(self, *args: str) -> object:
        """Send one command and return its reply."""
        self.socket.sendall(hiredis.pack_command(args))
        while True:
            self.reader.feed(self.socket.recv(65536))
            reply = self.reader.gets()
            if reply is not False:
                return reply


def sleeper(path: str, pipe: Connection) -> None:
    """Wait as told, and tell when it was over."""
    raw = Raw(path)
    bus = agentbus.connect(f"unix://{path}", project="bench", agent="sleeper")
    while (what := pipe.recv()) != "end":
        if what == "raw":
            raw.ask("XREAD", "COUNT", "100", "BLOCK", "0", "STREAMS", "bench:raw", "$")
        else:
            bus.await_("go", fresh=True)
        pipe.send(time.monotonic())


def waking(given: argparse.Namespace) -> Iterator[Figure]:
    """AgentBus adds two steps: `satisfy` checks the owner, and the awaiter checks the flag again."""
    took: dict[str, list[float]] = {"raw": [], "agentbus": []}
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder)) as server,
    ):
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        child = spawn.Process(target=sleeper, args=(server.socket, theirs), daemon=True)
        child.start()
        raw = Raw(server.socket)
        bus = agentbus.connect(server.url, project="bench", agent="waker")
        for turn in range(2 * given.rounds + 20):
            what = "raw" if turn % 2 else "agentbus"
            ours.send(what)
            while b"blocked_clients:1" not in raw.ask("INFO", "clients"):  # type: ignore[operator]
                time.sleep(0.0002)
            began = time.monotonic()
            if what == "raw":
                raw.ask("XADD", "bench:raw", "MAXLEN", "~", "1000", "*", "event", "go")
            else:
                bus.satisfy("go")
            if turn >= 20:
                took[what].append((ours.recv() - began) * 1000)
            else:
                ours.recv()
        ours.send("end")
        child.join()
    rows = []
    for part in (50, 99):
        mine, base = (percentile(took[what], part) for what in ("agentbus", "raw"))
        rows.append([f"p{part}", f"{base:.3f}", f"{mine:.3f}", f"{mine / base:.2f}", "2"])
    table(
        f"from satisfy to await's return, {given.rounds} rounds",
        ["", "raw XREAD ms", "agentbus ms", "ratio", "allowed"],
        rows,
    )

    yield Figure(
        name="wakeup",
        source="wakeup.waking",
        title="From satisfy to await's return",
        measured=f"between two processes, {given.rounds:,} rounds in turns",
        unit="ms",
        better="less",
        rows=tuple(
            row
            for part in (50, 99)
            for row in (
                Row("raw XREAD", Spread.at(part, took["raw"]), "baseline", group=f"p{part}"),
                Row(
                    "await",
                    Spread.at(part, took["agentbus"]),
                    ratio=percentile(took["agentbus"], part) / percentile(took["raw"], part),
                    against="raw XREAD",
                    wanted="≤ 2",
                    group=f"p{part}",
                ),
            )
        ),
    )


def crowd(given: argparse.Namespace) -> Iterator[Figure]:
    """200 coroutines await one flag: each gets `FlagFailed` when it fails, as soon as success wakes them.

    The time is from before `fail`, or `satisfy`, to the moment at which each coroutine goes on.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder)) as server,
    ):
        took = asyncio.run(_crowds(server.url, given.crowds))
    worst = {what: percentile(values, 99) for what, values in took.items()}
    table(
        f"{CROWD} coroutines await a flag, {given.crowds} rounds",
        ["", "p99 ms", "allowed"],
        [["satisfied", f"{worst['satisfy']:.1f}", ""], ["failed", f"{worst['fail']:.1f}", "250"]],
    )
    yield Figure(
        name="wakeup-crowd",
        source="wakeup.crowd",
        title=f"{CROWD} coroutines await a flag that fails, p99",
        measured=f"{given.crowds:,} rounds in turns",
        unit="ms",
        better="less",
        rows=(
            Row("it is satisfied", Spread.at(99, took["satisfy"]), "baseline"),
            Row(
                "it fails",
                Spread.at(99, took["fail"]),
                ratio=worst["fail"] / worst["satisfy"],
                against="it is satisfied",
                wanted="≤ 250 ms",
            ),
        ),
    )


async def _crowds(url: str, rounds: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {"satisfy": [], "fail": []}
    async with agentbus.aio.connect(url, project="bench", agent="crowd") as bus:
        for turn in range(rounds + 1):
            for what, end in (("satisfy", bus.satisfy), ("fail", bus.fail)):
                flag = f"go-{turn}-{what}"
                waiting = [asyncio.ensure_future(_woken(bus, flag)) for _ in range(CROWD)]
                while len([one for one in await bus.waiters() if one.flag == flag]) < CROWD:
                    await asyncio.sleep(0.01)
                began = time.monotonic()
                await end(flag)
                found = await asyncio.gather(*waiting)
                assert [how for how, _ in found] == [what] * CROWD
                if turn:
                    took[what] += [(at - began) * 1000 for _, at in found]
    return took


async def _woken(bus: agentbus.AsyncBus, flag: str) -> tuple[str, float]:
    """Return how an await ended, and when."""
    try:
        await bus.await_(flag)
    except FlagFailed:
        return "fail", time.monotonic()
    return "satisfy", time.monotonic()


def measures(given: argparse.Namespace) -> Iterator[Figure]:
    """Measure both."""
    yield from waking(given)
    yield from crowd(given)


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--crowds", type=int, default=20)
    run(measures, parser, SIZES)


if __name__ == "__main__":
    main()
