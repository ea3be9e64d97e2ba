"""Opens sockets to hosts, plain or with TLS."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbus.store.wire import Target


def connect(target: Target, until: float) -> socket.socket:
    """Connect to the first of a host's addresses that answers; raises `OSError`."""
    last: OSError | None = None
    found = socket.getaddrinfo(target.host, target.port, 0, socket.SOCK_STREAM)
    for family, kind, protocol, _name, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.001, until - time.monotonic()))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.tls is None:
                return sock
            secured: socket.socket = target.tls.wrap_socket(sock, server_hostname=target.host)
        except OSError as error:
            sock.close()
            last = error
        else:
            return secured
    raise last or OSError("the host has no address")
