"""Opens sockets to hosts, plain or with TLS."""

from __future__ import annotations

import _socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def connect(host: str, port: int, tls: Any, until: float) -> Any:
    """Connect to the first of a host's addresses that answers; raises `OSError`.

    `tls` is an `ssl.SSLContext`, or None.
    """
    last: OSError | None = None
    # For a `str`, even an ASCII name would load the IDNA tables.
    name = host.encode() if host.isascii() else host
    addresses = _socket.getaddrinfo(name, port, 0, _socket.SOCK_STREAM)
    for left, (family, kind, protocol, _canonical, address) in zip(
        range(len(addresses), 0, -1), addresses, strict=True
    ):
        sock = _socket.socket(family, kind, protocol)
        try:
            # Divide the time among the addresses: the first may never answer (such as on a broken
            # IPv6 route).
            sock.settimeout(max(0.001, (until - time.monotonic()) / left))
            sock.connect(address)
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            return _secured(sock, host, tls, until) if tls is not None else sock
        except OSError as error:
            sock.close()
            last = error
    raise last or OSError("the host has no address")


def _secured(plain: _socket.socket, host: str, tls: Any, until: float) -> Any:
    import socket

    sock = socket.socket(fileno=plain.detach())
    try:
        sock.settimeout(max(0.001, until - time.monotonic()))
        return tls.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
