"""What an entry of the channel costs in the server's memory, against a raw XADD of the same fields."""

from __future__ import annotations

import pathlib
import tempfile

import agentbus
from tests.bench._figures import table
from tests.servers import Server

ENTRIES = 5000


def main() -> None:
    """Fill two streams with the same entries and compare them."""
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder), "--appendfsync", "no") as server,
        agentbus.connect(server.url, project="bench", agent="build-agent-1") as bus,
    ):
        for size in (20, 200, 2000):
            server.ask("FLUSHALL")
            text = "x" * size
            for _ in range(ENTRIES):
                bus.speak(text, topic="build")
            mine = server.ask("MEMORY", "USAGE", "bench:ch:main", "SAMPLES", 0)
            every = sum(
                server.ask("MEMORY", "USAGE", key, "SAMPLES", 0) for key in server.ask("KEYS", "*")
            )
            server.ask("FLUSHALL")
            for _ in range(ENTRIES):
                server.ask(
                    *("XADD", "raw", "*", "agent_id", "build-agent-1", "message", text),
                    *("topic", "build"),
                )
            base = server.ask("MEMORY", "USAGE", "raw", "SAMPLES", 0)
            rows.append(
                [
                    *(size, f"{base / ENTRIES:.1f}", f"{mine / ENTRIES:.1f}"),
                    *(f"{mine / base:.3f}", f"{every / base:.3f}", "1.1"),
                ]
            )
    table(
        f"bytes an entry, {ENTRIES} entries",
        ["text", "raw XADD", "channel", "ratio", "with all other keys", "allowed"],
        rows,
    )


if __name__ == "__main__":
    main()
