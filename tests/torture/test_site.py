"""Clients reach a server through proxies, and say nothing where data goes."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
import redis

from tests.torture.network import Proxy
from tests.torture.plain import plain_client
from tests.torture.server import Server
from tests.torture.site import Site, spawn, through


@pytest.mark.parametrize(
    ("url", "reached"),
    [
        (None, "redis://127.0.0.1:{port}"),
        ("redis://db", "redis://127.0.0.1:{port}"),
        ("redis://db:6380/3", "redis://127.0.0.1:{port}/3"),
        ("redis://ada:s%40x@db:1?db=2", "redis://ada:s%40x@127.0.0.1:{port}/2"),
        ("redis://:pw@[::1]:6379/", "redis://:pw@127.0.0.1:{port}"),
    ],
)
def test_through_a_proxy_a_server_has_the_same_user_and_database(
    url: str | None, reached: str
) -> None:
    with Proxy("/nowhere") as proxy:
        assert through(proxy, url) == reached.format(port=proxy.port)


@pytest.mark.parametrize("reply", [False, True])
def test_a_request_is_kept_back_before_or_after_the_server_has_done_it(
    tmp_path: pathlib.Path, reply: bool
) -> None:
    with Server(tmp_path / "server") as server, Proxy(server.socket) as proxy:
        proxy.keeps, proxy.keeps_reply = b"INCR", reply

        with plain_client(proxy.url, 0.2, retry=None) as client:
            assert client.ping()
            with pytest.raises(redis.TimeoutError):
                client.incr("n")

            assert (proxy.kept, server.ask("GET", "n")) == (1, b"1" if reply else None)
            assert client.incr("n") == 1 + reply


def test_what_a_client_prints_is_kept_with_its_errors(tmp_path: pathlib.Path) -> None:
    (tmp_path / "said").touch()
    with (tmp_path / "said").open("ab") as errors:
        process = spawn(["this"], errors)
    group = os.getpgid(process.pid)
    process.communicate()

    assert group == process.pid, "a Ctrl-C would reach it"
    assert process.args == [sys.executable, "-m", "this"]
    assert "The Zen of Python" in (tmp_path / "said").read_text()


def test_no_role_of_a_run_gets_the_name_of_one_that_is_over(tmp_path: pathlib.Path) -> None:
    with Site(tmp_path, "/nowhere") as site:
        first = site.hire("archiver-1", lambda _: ["this"])
        site.clients.remove(first)
        first.end()

        with pytest.raises(ValueError, match="there was a 'archiver-1' before"):
            site.hire("archiver-1", lambda _: ["this"])
        assert site.hired == 1


def test_a_server_leaves_no_socket_behind(tmp_path: pathlib.Path) -> None:
    with Server(tmp_path / "short") as server:
        assert server.ask("PING") == b"PONG"
        assert server.process is not None
        assert os.getpgid(server.process.pid) == server.process.pid, "a Ctrl-C would reach it"
        socket = pathlib.Path(server.socket)
        assert socket.exists()
        assert (socket.parent == tmp_path / "short") == (len(f"{tmp_path}/short/socket") <= 100)

    assert not socket.exists()


def test_a_server_in_a_long_path_has_its_socket_elsewhere(tmp_path: pathlib.Path) -> None:
    with Server(tmp_path / ("long" * 25)) as server:
        assert server.ask("PING") == b"PONG"
        assert len(server.socket) < 100

    assert not pathlib.Path(server.socket).parent.exists()
