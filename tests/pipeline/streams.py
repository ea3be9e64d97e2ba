"""Streams that are filled while they are archived, and compared with the archive afterwards."""

from __future__ import annotations

import json
import random
import socket

import hiredis
import pyarrow.dataset

from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.archives.location import place
from tests.pipeline.archives import data_files
from tests.servers import Server

_SLICE = 1000


class Streams:
    """Streams that are filled while they are archived; all ids are remembered."""

    def __init__(self, server: Server, project: str, names: list[str]) -> None:
        self.server = server
        self.project = project
        self.names = names
        self.ids: set[tuple[str, str]] = set()

    def add(self, number: int, *, size: int = 200) -> None:
        """Add so many entries, spread over the streams, in pipelines."""
        reader = hiredis.Reader()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self.server.socket)
            for at in range(0, number, _SLICE):
                names = [random.choice(self.names) for _ in range(min(_SLICE, number - at))]
                body = json.dumps({"n": at, "text": "x" * (size - 24)})
                sock.sendall(
                    b"".join(
                        hiredis.pack_command(
                            ("XADD", f"{self.project}:{name}", "*", "payload", body)
                        )
                        for name in names
                    )
                )
                for name in names:
                    while (reply := reader.gets()) is False:
                        reader.feed(sock.recv(1 << 20))
                    self.ids.add((name, reply.decode()))


def archived(path: str) -> list[tuple[str, str]]:
    """Return what any reader of Parquet sees in the files of the archive."""
    table = pyarrow.dataset.dataset(archive_files(path)).to_table(["stream", "id"])
    return list(
        zip(table.column("stream").to_pylist(), table.column("id").to_pylist(), strict=True)
    )


def assert_equal(streams: Streams, path: str) -> None:
    """Every entry is there once, and none of the files is there for nothing."""
    found = archived(path)
    assert len(found) == len(set(found))
    assert set(found) == streams.ids
    state = ArchiveTable(place(path)).snapshot()
    assert set(data_files(path)) == set(state.files)
    assert sum(p.rows for p in state.positions.values()) == len(found)
