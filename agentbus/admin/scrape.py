"""Serves scrapes over HTTP on one path, with a limit of connections and a deadline for each."""

from __future__ import annotations

import io
import ipaddress
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import IO, TYPE_CHECKING, Any, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/metrics"
# Maximum number of simultaneous connections; any more are closed at once.
CONNECTIONS = 16
# Seconds to receive a request, and again to send the reply, however slow the client is.
DEADLINE = 10.0


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Serves a WSGI application at `/metrics`, each connection in a thread.

    On a loopback address, the Host of a request must be a loopback address, `localhost` or `host`.
    Otherwise any web page could read the metrics in this machine's browser, through a name that
    resolves to this address.
    """

    daemon_threads = True
    request_queue_size = 128
    # The server does not wait for its clients when it is closed.
    block_on_close = False

    def __init__(
        self, app: Callable[..., Any], port: int, host: str, *, deadline: float = DEADLINE
    ) -> None:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        self.deadline = deadline
        self._host = host.lower()
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__((str(place[0]), port), _Handler)
        self.set_app(app)

    def serves(self, name: str) -> bool:
        """Return whether the Host header of a request may name this server."""
        if not is_loopback(str(self.server_address[0])):
            return True
        name = name.strip().lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        return name in ("localhost", self._host) or is_loopback(name)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless too many are open."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and release its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that is too slow or has disconnected."""


def is_loopback(address: str) -> bool:
    """Return whether this is a loopback address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class _Handler(WSGIRequestHandler):
    server: ScrapeServer

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_InTime(self.connection, self.server.deadline))

    def handle(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if len(self.raw_requestline) > 65536:
            self.send_error(414)
        elif self.raw_requestline and self.parse_request():
            # The request was received: the deadline for sending the reply begins.
            self.connection.settimeout(self.server.deadline)
            host = self.headers.get("Host", "")
            if not self.server.serves(host):
                self.send_error(403, "This host is not served")
            elif self.path.partition("?")[0] != PATH:
                self.send_error(404, f"The metrics are at {PATH}")
            else:
                answering = _Answer(
                    cast("IO[bytes]", self.rfile),
                    cast("IO[bytes]", self.wfile),
                    self.get_stderr(),
                    self.get_environ(),
                    multithread=True,
                )
                answering.request_handler = self  # type: ignore[attr-defined]
                app = self.server.get_app()
                assert app is not None
                answering.run(app)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Answer(ServerHandler):
    def log_exception(self, exc_info: Any) -> None:
        """Log nothing: clients may disconnect before the reply."""


class _InTime(io.RawIOBase):
    """Reads from a client until `within` seconds have passed."""

    def __init__(self, connection: socket.socket, within: float) -> None:
        self._connection = connection
        self._until = time.monotonic() + within

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)
