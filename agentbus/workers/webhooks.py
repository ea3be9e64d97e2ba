"""Webhooks: signed results posted to https URLs, with their own retries.

A worker with webhooks on appends each one to the queue `~webhooks`, atomically with settling the task, with
a code by its secret. The sender posts nothing without that code. It is an ordinary worker on that queue, so
retries, pauses and dead letters work as with any queue.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from agentbus.core.errors import ConfigError, UsageError
from agentbus.core.settings import resolve
from agentbus.queues import webhook_url
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.notify import WEBHOOKS, webhook_mac
from agentbus.queues.retry import Backoff, Bury, Retry
from agentbus.workers.worker import Worker

if TYPE_CHECKING:
    from agentbus.core.settings import Settings
    from agentbus.queues.delivery import Delivery
    from agentbus.queues.runner import BlockingBus

    class Headers(Protocol):
        """The headers of a request; some frameworks, and `http.server`, do not provide a `Mapping`."""

        def items(self) -> Iterable[tuple[str, str]]: ...


SIGNATURE = "AgentBus-Signature"
# Maximum age of a signature in seconds, including clock differences.
TOLERANCE = 300.0
_TIMEOUT = 10.0
_LONGEST_PAUSE = 3600.0
_MOST_OF_ANSWER = 1024
_RETRIED = frozenset((408, 425, 429))
_ATTEMPTS = 10
_AT_ONCE = 8
_PAUSES = Backoff(first=2.0, longest=900.0)
# Global unicast addresses, and the NAT64 prefix, which embeds IPv4 addresses.
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
# Documentation prefix of RFC 9637, which Python does not know yet.
_DOCUMENTATION_6 = ipaddress.IPv6Network("3fff::/20")
# Protocols use the first two; not every Python version treats all of them as special. The others are
# networks of Azure and of IBM Cloud, which only machines in these clouds reach.
_SPECIAL_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            *("192.0.0.0/24", "192.88.99.0/24"),
            *("168.63.129.16/32", "161.26.0.0/16", "166.8.0.0/14"),
        ),
    )
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


# -- for receivers ------------------------------------------------------------------------------


def verify(
    secret: str,
    headers: Headers,
    body: bytes,
    tolerance: float = TOLERANCE,
    *,
    now: float | None = None,
) -> bool:
    """Return whether a request was signed with this secret at most `tolerance` seconds ago.

    `headers` may come from any framework, in any letter case: a mapping, or another object with `items()`;
    `body` is the raw request body. Raises `ConfigError` if the secret is empty, because then anybody could
    sign.
    """
    _check_secret(secret)
    signature = next(
        (str(value) for name, value in headers.items() if name.lower() == SIGNATURE.lower()), ""
    )
    parts = [part.strip().partition("=") for part in signature.split(",")]
    stamp = next((value for name, _, value in parts if name == "t"), "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16):
        return False
    if abs((time.time() if now is None else now) - int(stamp)) > tolerance:
        return False
    wanted = _digest(secret, stamp, body).encode()
    given = [value.encode("utf-8", "replace") for name, _, value in parts if name == "v1"]
    return any(hmac.compare_digest(wanted, value) for value in given)


def sign(secret: str, body: bytes, *, now: float | None = None) -> str:
    """Return the signature of a body: the value of the header `AgentBus-Signature`.

    Raises `ConfigError` if the secret is empty.
    """
    _check_secret(secret)
    stamp = str(int(time.time() if now is None else now))
    return f"t={stamp},v1={_digest(secret, stamp, body)}"


def _check_secret(secret: str) -> None:
    if not secret:
        raise ConfigError("the secret of webhooks is empty", hint="set AGENTBUS_WEBHOOK_SECRET")


def _digest(secret: str, stamp: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()


# -- for senders --------------------------------------------------------------------------------


def sender(bus: BlockingBus, **options: Any) -> Worker:
    """Return a worker that posts the webhooks in `~webhooks`; `options` are those of `Bus.subscribe`.

    Raises `ConfigError` if webhooks are disabled or no signing secret is set.
    """
    kept = {"attempts": _ATTEMPTS, "concurrency": _AT_ONCE, "backoff": _PAUSES, **options}
    pauses = kept["backoff"] if isinstance(kept["backoff"], Backoff) else _PAUSES
    return Worker(bus.runner, WEBHOOKS, handler(bus.runner.settings, pauses), **kept)


class WebhooksSent:
    """The number of webhooks that `beside` has sent."""

    def __init__(self) -> None:
        self.count = 0


@contextlib.contextmanager
def beside(bus: BlockingBus, *, drain: Callable[[], bool] = bool) -> Iterator[WebhooksSent]:
    """Send webhooks in a thread during the `with` block, if they are enabled.

    At the end of the block, it sends the waiting webhooks as long as `drain` returns true, without retries.
    The yielded object's `count` is then the number of webhooks sent.
    """
    sent = WebhooksSent()
    if not bus.runner.settings.webhooks:
        yield sent
        return
    worker = sender(bus)
    thread = threading.Thread(target=worker.run, name="agentbus-webhooks", daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        worker.stop()
        thread.join()
        sent.count += worker.done
    if drain():
        with sender(bus) as last:
            while drain() and last.run_once():
                pass
        sent.count += last.done
        leaving = QueueConsumer(bus.runner.scope, WEBHOOKS, last.group, last.name).leave()
        bus.runner.run(leaving, verb="webhook")


def handler(settings: Settings, pauses: Backoff = _PAUSES) -> Callable[[Delivery], None]:
    """Return a handler for the queue `~webhooks`. Raises `ConfigError`.

    The pause before the next attempt is that of `pauses`, or longer if the receiver asks for more.
    """
    secret, allowed = settings.webhook_secret, frozenset(settings.webhook_allow)
    if not settings.webhooks:
        raise ConfigError("webhooks are off", hint="set AGENTBUS_WEBHOOKS=1")
    if not secret:
        raise ConfigError(
            "there is no secret to sign webhooks with", hint="set AGENTBUS_WEBHOOK_SECRET"
        )

    def post(delivery: Delivery) -> None:
        url, body = _what(delivery.payload, secret)
        try:
            target = webhook_url.target(url)
        except UsageError as error:
            raise Bury(str(error)) from None
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "agentbus",
            "Connection": "close",
            "AgentBus-Delivery": delivery.id.encode("ascii", "backslashreplace").decode(),
            SIGNATURE: sign(secret, body),
        }
        permitted = not allowed.isdisjoint((target.host, target.authority))
        try:
            status, retry_after, answered = _post(target, body, headers, allowed=permitted)
            # A reply of a host in the user's own network is kept out of the dead letter, which others read.
            _judge(status, retry_after, "" if permitted else answered)
        except Retry as again:
            # Enforce the backoff, since a receiver that asks for 0 seconds would get all attempts
            # at once.
            if again.after is not None:
                again.after = max(again.after, pauses.after(delivery.attempt))
            raise

    return post


def deliver(delivery: Delivery) -> None:
    """Post one webhook with the settings of this process; a handler for `agentbus work`."""
    handler(resolve())(delivery)


def _what(payload: Any, secret: str) -> tuple[str, bytes]:
    """Return the URL and the body of a webhook that a worker with this secret appended."""
    if not isinstance(payload, dict) or not {"url", "body"} <= payload.keys():
        raise Bury("the task is not a webhook: it needs a url and a body")
    url, body = payload["url"], payload["body"]
    mac = str(payload.get("mac")).encode("utf-8", "replace")
    if not hmac.compare_digest(mac, webhook_mac(secret, url, body).encode()):
        raise Bury("the task was not appended by a worker with this AGENTBUS_WEBHOOK_SECRET")
    return url, orjson.dumps(body)


def _post(
    target: webhook_url.WebhookTarget, body: bytes, headers: Mapping[str, str], *, allowed: bool
) -> tuple[int, str | None, str]:
    """Post a body, and return the status, the header Retry-After, and the start of the response."""
    until = time.monotonic() + _TIMEOUT
    try:
        with _connected(target, _addresses(target, allowed=allowed), until) as link:
            # http.client itself puts an IPv6 address in brackets.
            connection = http.client.HTTPConnection(target.host, target.port)
            connection.sock = link
            connection.default_port = 443
            connection.request("POST", target.path, body, dict(headers))
            with connection.getresponse() as answer:
                answered = answer.read(_MOST_OF_ANSWER).decode("utf-8", "backslashreplace")
                return answer.status, answer.getheader("Retry-After"), answered
    except (OSError, http.client.HTTPException, ValueError) as error:
        # The webhook may have arrived; receivers detect duplicates by AgentBus-Delivery.
        late = isinstance(error, TimeoutError)
        why = f"no answer within {_TIMEOUT:g} s" if late else str(error) or type(error).__name__
        raise Retry(f"{target.host}:{target.port} could not be posted to ({why})") from None


def _judge(status: int, retry_after: str | None, answered: str) -> None:
    """Return if a status means success; otherwise raise `Retry` or `Bury`."""
    if 200 <= status < 300:
        return
    what = f"the receiver answered {status}" + (f": {answered[:300]}" if answered else "")
    if status in _RETRIED or status >= 500:
        raise Retry(what, after=_pause(retry_after))
    if 300 <= status < 400:
        what += " (redirects are not followed)"
    raise Bury(what)


def _pause(retry_after: str | None) -> float | None:
    """Return the bounded seconds of a Retry-After header, or None."""
    if retry_after is None:
        return None
    value = retry_after.strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), _LONGEST_PAUSE)
    try:
        at = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, at - time.time()), _LONGEST_PAUSE)


def _addresses(target: webhook_url.WebhookTarget, *, allowed: bool) -> list[tuple[int, Any]]:
    """Resolve a host once, check its addresses, and return them; only these are connected to."""
    addresses: list[tuple[int, Any]] = [
        (family, address)
        for family, _, _, _, address in socket.getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM
        )
        if family in (socket.AF_INET, socket.AF_INET6)
    ]
    for _, address in addresses:
        if not allowed and not is_global(str(address[0])):
            raise Bury(
                f"{target.host!r} is at {address[0]}, which is not an address of the public internet;"
                " if that is meant, allow the host by name, or as host:port: AGENTBUS_WEBHOOK_ALLOW"
            )
    if not addresses:
        raise OSError("it has no address")
    return addresses


def is_global(address: str) -> bool:
    """Return whether an address is a public unicast address."""
    ip: Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None:
            if ip in _DOCUMENTATION_6 or ip.teredo is not None:
                return False
            return ip in _GLOBAL_6 and ip.is_global
        ip = inner
    if ip.is_multicast or ip.is_reserved or any(ip in net for net in _SPECIAL_4):
        return False
    return ip.is_global


@contextlib.contextmanager
def _connected(
    target: webhook_url.WebhookTarget, addresses: list[tuple[int, Any]], until: float
) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context()
    context.sslsocket_class = _DeadlineSocket
    failure: OSError = OSError("it has no address")
    for family, address in addresses:
        raw = socket.socket(family, socket.SOCK_STREAM)
        try:
            raw.settimeout(_left(until))
            raw.connect(address)
            link = context.wrap_socket(raw, server_hostname=target.host)
        except OSError as error:
            raw.close()
            failure = error
            continue
        assert isinstance(link, _DeadlineSocket)
        link.until = until
        with link:
            yield link
        return
    raise failure


class _DeadlineSocket(ssl.SSLSocket):
    """A TLS socket with a deadline for the whole exchange, as a defence against slow receivers."""

    until = float("inf")

    def send(self, *args: Any, **options: Any) -> int:
        self.settimeout(_left(self.until))
        return super().send(*args, **options)

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.settimeout(_left(self.until))
        return super().recv_into(*args, **options)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return min(left, _TIMEOUT)
