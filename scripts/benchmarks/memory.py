"""Server memory per channel entry, against a raw XADD of the same fields.

python -m scripts.benchmarks.memory [--entries N]
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from collections.abc import Iterator

import agentbus
from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from tests.servers import Server

SIZES = {"quick": {"entries": 500}, "page": {}}


def channel(given: argparse.Namespace) -> Iterator[Figure]:
    """Two streams are filled with the same entries, and the server reports the size of each.

    The other keys of the project, such as its lists of agents and topics, do not grow with its messages.
    """
    entries, rows, data = given.entries, [], []
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder), "--appendfsync", "no") as server,
        agentbus.connect(server.url, project="bench", agent="build-agent-1") as bus,
    ):
        for size in (20, 200, 2000):
            server.ask("FLUSHALL")
            text = "x" * size
            for _ in range(entries):
                bus.speak(text, topic="build")
            mine = server.ask("MEMORY", "USAGE", "bench:ch:main", "SAMPLES", 0)
            every = sum(
                server.ask("MEMORY", "USAGE", key, "SAMPLES", 0) for key in server.ask("KEYS", "*")
            )
            server.ask("FLUSHALL")
            for _ in range(entries):
                server.ask(
                    *("XADD", "raw", "*", "agent_id", "build-agent-1", "message", text),
                    *("topic", "build"),
                )
            base = server.ask("MEMORY", "USAGE", "raw", "SAMPLES", 0)
            data += [
                Row("raw XADD", Spread.once(base / entries), "baseline", group=f"{size} bytes"),
                *(
                    Row(
                        what,
                        Spread.once(found / entries),
                        ratio=found / base,
                        against="raw XADD",
                        wanted=wanted,
                        group=f"{size} bytes",
                    )
                    for what, found, wanted in (
                        ("channel", mine, "≤ 1.1"),
                        ("all keys of the project", every, ""),
                    )
                ),
            ]
            rows.append(
                [
                    *(size, f"{base / entries:.1f}", f"{mine / entries:.1f}"),
                    *(f"{mine / base:.3f}", f"{every / base:.3f}", "1.1"),
                ]
            )
    table(
        f"bytes an entry, {entries} entries",
        ["text", "raw XADD", "channel", "ratio", "with all other keys", "allowed"],
        rows,
    )

    yield Figure(
        name="memory-channel",
        source="memory.channel",
        title="Memory of an entry of the channel, by the length of its text",
        measured=f"MEMORY USAGE of {entries:,} entries",
        unit="bytes",
        better="less",
        rows=tuple(data),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=5000)
    run(channel, parser, SIZES)


if __name__ == "__main__":
    main()
