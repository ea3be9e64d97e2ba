"""Streams of tasks to archive, and what one would write by hand to archive them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hiredis
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import redis

from tests.servers import Server

PROJECT = "bench"
_SLICE = 5000
Payload = Callable[[int], str]


def ordinary(n: int) -> str:
    """Return a payload of 200 bytes, three quarters of which no compression finds anything in."""
    body = json.dumps({"n": n, "to": f"agent-{n % 50}", "text": os.urandom(75).hex()})
    return body[:198] + '"}'


def fill(server: Server, stream: str, rows: int, payload: Payload = ordinary) -> None:
    """Add so many tasks."""
    reader = hiredis.Reader()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(server.socket)
        for at in range(0, rows, _SLICE):
            number = min(_SLICE, rows - at)
            out = []
            for n in range(at, at + number):
                words = ("XADD", f"{PROJECT}:{stream}", "*", "payload", payload(n))
                out.append(hiredis.pack_command(words))
            sock.sendall(b"".join(out))
            while number:
                if reader.gets() is False:
                    reader.feed(sock.recv(1 << 20))
                else:
                    number -= 1


def plain(server: Server, streams: list[str], place: pathlib.Path) -> int:
    """Copy streams to one Parquet file as a careful engineer would by hand: the baseline (a)."""
    connection = redis.Redis(unix_socket_path=server.socket).connection_pool.get_connection()
    schema = pa.schema(
        [
            ("stream", pa.string()),
            ("id", pa.string()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("payload", pa.string()),
        ]
    )
    total = 0
    with pq.ParquetWriter(place, schema, compression="zstd") as writer:
        for stream in streams:
            after = "-"
            while True:
                words = ("XRANGE", f"{PROJECT}:{stream}", after, "+", "COUNT", 10_000)
                connection.send_command(*words)
                page = connection.read_response()
                if not page:
                    break
                ids = [entry[0].decode() for entry in page]
                moments = [int(entry_id.partition("-")[0]) * 1000 for entry_id in ids]
                payloads = [entry[1][1].decode() for entry in page]
                columns = {
                    "stream": [stream] * len(ids),
                    "id": ids,
                    "time": pa.array(moments, pa.timestamp("us", tz="UTC")),
                    "payload": payloads,
                }
                writer.write_table(pa.table(columns, schema=schema))
                total += len(ids)
                after = f"({ids[-1]}"
    return total


def overlapped(server: Server, streams: list[str], place: pathlib.Path) -> int:
    """Copy streams as who knows the tools would by hand: the baseline (b).

    hiredis parses what a plain socket receives; columns are made of bytes, and the next page is requested
    as soon as the id that it follows is known.
    """
    schema = pa.schema(
        [
            ("stream", pa.string()),
            ("id", pa.binary()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("payload", pa.binary()),
        ]
    )
    reader, buffer, total = hiredis.Reader(), bytearray(1 << 20), 0
    with (
        socket.socket(socket.AF_UNIX) as sock,
        pq.ParquetWriter(place, schema, compression="zstd", use_dictionary=["stream"]) as writer,
    ):
        sock.connect(server.socket)
        for stream in streams:

            def ask(after: str, key: str = f"{PROJECT}:{stream}") -> None:
                sock.sendall(hiredis.pack_command(("XRANGE", key, after, "+", "COUNT", 10_000)))

            ask("-")
            while True:
                while (page := reader.gets()) is False:
                    reader.feed(buffer, 0, sock.recv_into(buffer))
                if not page:
                    break
                ask(f"({page[-1][0].decode()}")
                ids = pa.array([entry[0] for entry in page], pa.binary())
                parts = pc.split_pattern(ids.cast(pa.string()), "-")
                moments = pc.multiply(pc.list_element(parts, 0).cast(pa.int64()), 1000)
                columns = {
                    "stream": pa.repeat(stream, len(ids)),
                    "id": ids,
                    "time": moments.cast(pa.timestamp("us", tz="UTC")),
                    "payload": pa.array([entry[1][1] for entry in page], pa.binary()),
                }
                writer.write_table(pa.table(columns, schema=schema))
                total += len(ids)
    return total


@contextmanager
def served() -> Iterator[tuple[Server, pathlib.Path]]:
    """Run a server that keeps nothing on disk, and a directory."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-bench-"))
    try:
        with Server(place / "server", "--appendonly", "no") as server:
            yield server, place
    finally:
        shutil.rmtree(place, ignore_errors=True)
