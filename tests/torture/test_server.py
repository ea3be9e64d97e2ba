"""A server of one's own can be starved, wiped, robbed of its log's end, and shifted in time."""

from __future__ import annotations

import contextlib
import gc
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import redis

from agentbus.core.errors import BackendUnavailable
from tests.torture.server import Server


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    with Server(tmp_path / "server", clock=True) as found:
        yield found


def becomes(server: Server, ahead: float) -> bool:
    """Ask until its clock goes so much ahead: the first answers may tell the time of its last round."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if abs(int(server.ask("TIME")[0]) - time.time() - ahead) < 60:
            return True
    return False


def test_a_starved_server_refuses_what_needs_memory_until_it_is_fed(server: Server) -> None:
    server.starve()
    with pytest.raises(redis.OutOfMemoryError):
        server.ask("SET", "a", "b")

    server.feed()
    assert server.ask("SET", "a", "b") == b"OK"


@pytest.mark.parametrize("restart", [True, False])
def test_a_wiped_server_knows_nothing(server: Server, restart: bool) -> None:
    server.ask("SET", "a", "b")

    server.wipe(restart=restart)

    assert server.ask("DBSIZE") == 0


def test_a_server_without_its_logs_end_has_forgotten_the_last_thing(server: Server) -> None:
    server.ask("SET", "a", "b")
    server.ask("SET", "c", "d")
    server.kill()

    assert server.lose_tail(3)
    server.start()

    assert (server.ask("GET", "a"), server.ask("GET", "c")) == (b"b", None)


def test_a_server_that_has_forgotten_all_has_nothing_more_to_lose(server: Server) -> None:
    server.ask("SET", "a", "b")
    server.kill()

    assert server.lose_tail(server.written)
    assert server.written == 0
    assert not server.lose_tail(1)


@pytest.mark.parametrize("leap", [7200, -7200])
def test_a_servers_clock_leaps_and_leaps_back(server: Server, leap: int) -> None:
    assert server.has_clockwork

    server.shift(leap)
    assert becomes(server, leap)

    server.shift(0)
    assert becomes(server, 0)


def test_a_shifted_clock_outlives_the_server(server: Server) -> None:
    server.shift(7200)
    server.kill()

    server.start()

    assert becomes(server, 7200)


def accepts(path: str) -> bool:
    """Tell whether a server listens on a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(path) == 0


def test_a_server_whose_port_was_taken_meanwhile_starts_at_another(tmp_path: pathlib.Path) -> None:
    server = Server(tmp_path / "server")
    lost = server.port
    with socket.create_server(("127.0.0.1", lost)), server:
        assert server.port != lost
        assert server.tcp_url == f"redis://127.0.0.1:{server.port}"
        assert redis.Redis.from_url(server.tcp_url).ping()


def test_a_server_that_does_not_start_leaves_nothing(tmp_path: pathlib.Path) -> None:
    server = Server(tmp_path / "server", port=Server(tmp_path / "other").port)

    with socket.create_server(("127.0.0.1", server.port)):
        with pytest.raises(BackendUnavailable, match="Address already in use"):
            server.__enter__()

    # A process that still runs raises a ResourceWarning here, which is an error.
    del server
    gc.collect()


VALKEY = """
import pathlib, sys
from tests.torture.server import Server

with Server(pathlib.Path(sys.argv[1])) as server:
    server.kill()
    server.start()
    print(server.socket, flush=True)
    sys.stdin.read()
"""
POSTGRESQL = """
import sys
from tests.torture.events.postgres import Postgres

with Postgres(fsync="off") as server:
    print(server.socket, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("program", [VALKEY, POSTGRESQL], ids=["valkey", "postgresql"])
def test_a_server_does_not_outlive_whoever_started_it(tmp_path: pathlib.Path, program: str) -> None:
    words = [sys.executable, "-c", program, str(tmp_path / "server")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        path = owner.stdout.readline().strip()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(path)

            owner.kill()

            # Who is told of its end knows that the server is gone.
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass
            # Its end closes its sockets one after the other.
            until = time.monotonic() + 20
            while accepts(path):
                assert time.monotonic() < until
