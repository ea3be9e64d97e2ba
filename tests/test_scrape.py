"""The exporter's port: slow, many, lost and foreign clients keep nobody from the metrics."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentbus.admin import scrape


def hello(_environ: Any, start: Callable[..., Any]) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


@contextlib.contextmanager
def serving(
    app: Callable[..., Any] = hello, host: str = "127.0.0.1", **options: Any
) -> Iterator[scrape.ScrapeServer]:
    with scrape.ScrapeServer(app, 0, host, **options) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: scrape.ScrapeServer, path: str = "/metrics", **headers: str) -> tuple[int, bytes]:
    link = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    with contextlib.closing(link):
        link.request("GET", path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.read()


def dial(server: scrape.ScrapeServer) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=20)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:9464", "LOCALHOST", "127.9.9.9:1", "[::1]:9464"]
)
def test_this_machine_may_name_the_server(host):
    with serving() as server:
        assert get(server, Host=host) == (200, b"hello")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:9464", "", "10.0.0.1", "["]
)
def test_a_name_of_somebody_else_is_refused_on_a_loopback_address(host):
    with serving() as server:
        status, body = get(server, Host=host)

    assert (status, b"hello" in body) == (403, False)


def test_any_name_is_served_on_an_address_for_other_machines():
    with serving(host="0.0.0.0") as server:
        assert get(server, Host="node1.example:9464") == (200, b"hello")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../metrics", "/favicon.ico", "/metricsx"])
def test_another_path_is_not_found(path):
    with serving() as server:
        assert get(server, path)[0] == 404
        assert get(server, "/metrics?name[]=x") == (200, b"hello")


def test_a_client_that_sends_nothing_or_slowly_is_closed():
    with serving(deadline=0.2) as server, dial(server) as silent, dial(server) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")

        assert (silent.recv(1), slow.recv(1)) == (b"", b"")


def test_connections_are_bounded_and_their_places_are_free_again():
    with serving() as server, contextlib.ExitStack() as clients:
        held = [clients.enter_context(dial(server)) for _ in range(scrape.CONNECTIONS)]
        with dial(server) as one_more:
            assert one_more.recv(1) == b""
        for each in held:
            each.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        for each in held:
            with each.makefile("rb") as answer:
                assert answer.read().endswith(b"hello")

        while True:
            # A place is free a moment after its client has the answer.
            with contextlib.suppress(OSError, http.client.HTTPException):
                assert get(server) == (200, b"hello")
                break


def test_a_failure_and_a_client_that_leaves_print_no_traceback(capfd):
    def fails(_environ: Any, _start: Any) -> list[bytes]:
        raise RuntimeError("secret")

    with serving(fails) as server:
        with dial(server) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            link.sendall(b"GET /met")
        status, body = get(server)

    assert (status, b"secret" in body) == (500, False)
    assert capfd.readouterr() == ("", "")


def test_an_invalid_request_prints_no_traceback(capfd):
    with serving() as server, dial(server) as link:
        link.sendall(b"\x16\x03\x01\0\xff nonsense\r\n\r\n")
        link.recv(4096)

    assert capfd.readouterr() == ("", "")
