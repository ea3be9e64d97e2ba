"""Locates servers behind TLS, sentinels or a cluster."""

from __future__ import annotations

import ssl
import threading
import time
from typing import Any

import redis
import redis.sentinel
from redis.crc import key_slot
from redis.exceptions import RedisClusterException

from agentbus.core.errors import ConfigError
from agentbus.store import sandbox
from agentbus.store.connection import Target
from agentbus.store.steps import Denied, LinkDown
from agentbus.store.url import Url

_ACCESS = (
    *("WRONGPASS", "NOAUTH", "NOPERM", "invalid username-password"),
    # redis-py reports only these class names for a sentinel's refusal.
    *("auth:AuthenticationError", "auth:AuthorizationError"),
)
# Seconds for which the finders of a project's shards share one reply of the cluster.
_YOUNG = 1.0


def secured(url: Url, host: str, port: int) -> Target:
    """Return a target that speaks TLS, with the certificates that the URL's options name."""
    return Target(
        host=host,
        port=port,
        username=url.username,
        password=url.password,
        database=url.database(),
        tls=_context(url),
    )


class SentinelFinder:
    """Asks the sentinels in `redis+sentinel://host:port,host:port/service[?db=n]` for the master."""

    def __init__(self, url: Url) -> None:
        self._url = url
        self._name = url.masked()
        parts = [part for part in url.path.split("/") if part]
        if not url.hosts or len(parts) not in (1, 2):
            raise ConfigError(
                f"{self._name} names no service",
                hint="write redis+sentinel://host:26379,host:26379/service",
            )
        self._service = parts[0]
        options = dict(url.options)
        self._tls = _context(url) if _wants_tls(url) else None
        self._database = url.database("".join(parts[1:]))
        self._kwargs: dict[str, Any] = {
            "username": options.get("sentinel_username"),
            "password": options.get("sentinel_password"),
            "retry": None,
            "protocol": 2,
            # Do not send CLIENT SETINFO, which the ACL may forbid.
            "driver_info": None,
            "ssl": self._tls is not None,
            **_ssl_options(url),
        }

    def find(self, within: float) -> Target:
        """Return the current master, asking the sentinels in turn."""
        hosts = [(host, port or 26379) for host, port in self._url.hosts]
        patience = within / len(hosts)
        sentinel = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
            hosts,
            sentinel_kwargs={
                **self._kwargs,
                "socket_timeout": patience,
                "socket_connect_timeout": patience,
            },
        )
        try:
            address = sentinel.discover_master(self._service)  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            _refuse_access(error, self._name)
            _refuse_without_sockets()
            asked = ", ".join(f"{host}:{port}" for host, port in hosts)
            why = f"no sentinel of {asked} names a master for {self._service!r}"
            raise LinkDown(why, sent=False) from None
        finally:
            # Close the connections to sentinels now, not at garbage collection.
            for asked_one in sentinel.sentinels:
                asked_one.close()
        host, port = address
        return Target(
            host=str(host),
            port=int(port),
            username=self._url.username,
            password=self._url.password,
            database=self._database,
            tls=self._tls,
        )


class _SlotMap:
    """The primaries of a cluster by slot, as last read, for the finders of one project's shards."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.primaries: dict[int, Any] = {}
        self.version = 0
        self.read_at = float("-inf")

    def set(self, primaries: dict[int, Any]) -> None:
        self.primaries, self.version = primaries, self.version + 1
        self.read_at = time.monotonic()


class ClusterFinder:
    """Asks a cluster for the node of a project, or of one of its shards, whose keys share one hash tag."""

    def __init__(self, url: Url, project: str, slots: _SlotMap | None = None) -> None:
        self._url = url
        if not url.hosts:
            raise ConfigError(f"{url.masked()} names no host", hint="write host:port,host:port")
        self._key = project if project.startswith("{") else f"{{{project}}}"
        self._tls = _context(url) if _wants_tls(url) else None
        self._slots = _SlotMap() if slots is None else slots
        self._used = 0

    def of(self, shard: str) -> ClusterFinder:
        """Return a finder for another shard; the finders of a project share what the cluster replied."""
        return ClusterFinder(self._url, shard, self._slots)

    def find(self, within: float) -> Target:
        """Return the current master of the shard."""
        slots = self._slots
        if not slots.lock.acquire(timeout=within):
            raise LinkDown("the cluster does not answer", sent=False)
        try:
            # A finder that asks again was not served by the node that the map names.
            if self._used == slots.version or time.monotonic() - slots.read_at > _YOUNG:
                slots.set(self._read(within))
            self._used = slots.version
        finally:
            slots.lock.release()
        node = slots.primaries.get(key_slot(self._key.encode()))
        if node is None:
            raise LinkDown("the cluster has no shard for this project now", sent=False)
        return Target(
            host=str(node.host),
            port=int(node.port),
            username=self._url.username,
            password=self._url.password,
            tls=self._tls,
        )

    def _read(self, within: float) -> dict[int, Any]:
        """Return the primary of each slot that has one."""
        nodes = [
            redis.cluster.ClusterNode(host, port or 6379)  # type: ignore[no-untyped-call]
            for host, port in self._url.hosts
        ]
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": True, **_ssl_options(self._url)}
        try:
            cluster = redis.RedisCluster(
                startup_nodes=nodes,
                username=self._url.username,
                password=self._url.password,
                socket_timeout=within / len(nodes),
                socket_connect_timeout=within / len(nodes),
                require_full_coverage=False,
                protocol=2,
                driver_info=None,
                **options,
            )
            try:
                known = cluster.nodes_manager.slots_cache
                return {slot: nodes[0] for slot, nodes in known.items() if nodes}
            finally:
                cluster.close()
        except (redis.RedisError, RedisClusterException) as error:
            _refuse_access(error, self._url.masked())
            _refuse_without_sockets()
            raise LinkDown(f"the cluster names no shard ({error})", sent=False) from None


def _refuse_without_sockets() -> None:
    """Raise `Denied` if network sockets are unavailable, which the client library does not report."""
    if denied := sandbox.without_sockets():
        raise Denied(denied)


def _refuse_access(error: BaseException, name: str) -> None:
    """Raise `ConfigError` if the server rejected the login, or its certificate was rejected."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_" in str(cause):
            raise ConfigError(
                f"a certificate of {name} was not accepted",
                hint="name its authority with ssl_ca_certs=FILE, or correct the hosts in the URL",
            ) from None
        if isinstance(cause, redis.AuthenticationError) or any(
            word in str(cause) for word in _ACCESS
        ):
            raise ConfigError(
                f"{name} refused the user or the password",
                hint="check the user, the password and the user's ACL rules",
            ) from None
        cause = cause.__cause__ or cause.__context__


def _wants_tls(url: Url) -> bool:
    return dict(url.options).get("tls", "").lower() in ("1", "true", "yes")


def _ssl_options(url: Url) -> dict[str, object]:
    options: dict[str, object] = {k: v for k, v in url.options if k.startswith("ssl_")}
    if "ssl_check_hostname" in options:
        options["ssl_check_hostname"] = _true(url, "ssl_check_hostname")
    return options


def _context(url: Url) -> ssl.SSLContext:
    options = dict(url.options)
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{url.masked()} names a certificate that cannot be read ({error})",
            hint="correct ssl_ca_certs, ssl_certfile or ssl_keyfile",
        ) from None
    required = options.get("ssl_cert_reqs", "required")
    if required not in ("required", "none"):
        raise ConfigError(
            f"{url.masked()} has ssl_cert_reqs={required!r}", hint="use required or none"
        )
    if required == "none" or not _true(url, "ssl_check_hostname"):
        context.check_hostname = False
    if required == "none":
        context.verify_mode = ssl.CERT_NONE
    return context


def _true(url: Url, option: str) -> bool:
    return dict(url.options).get(option, "true").lower() in ("1", "true", "yes")
