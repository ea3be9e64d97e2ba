"""Opens sockets to hosts, plain or with TLS."""

from __future__ import annotations

import _socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.store.target import Target


def connect(target: Target, until: float) -> Any:
    """Connect to the first of a host's addresses that answers; raises `OSError`."""
    last: OSError | None = None
    # As str, even an ASCII name would load the IDNA tables.
    host = target.host.encode() if target.host.isascii() else target.host
    found = _socket.getaddrinfo(host, target.port, 0, _socket.SOCK_STREAM)
    for family, kind, protocol, _name, address in found:
        sock = _socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.001, until - time.monotonic()))
            sock.connect(address)
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            return _secured(sock, target, until) if target.tls is not None else sock
        except OSError as error:
            sock.close()
            last = error
    raise last or OSError("the host has no address")


def _secured(plain: _socket.socket, target: Target, until: float) -> Any:
    import socket

    sock = socket.socket(fileno=plain.detach())
    try:
        sock.settimeout(max(0.001, until - time.monotonic()))
        return target.tls.wrap_socket(sock, server_hostname=target.host)
    except BaseException:
        sock.close()
        raise
