"""The backends by URL scheme."""

from __future__ import annotations

from agentbus.core.errors import ConfigError
from agentbus.store.connection import Backend, Target
from agentbus.store.url import Url, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.store.async_driver import AsyncLink
    from agentbus.store.discovery import ClusterFinder
    from agentbus.store.steps import Link


def backend(text: str, project: str) -> Backend:
    """Return the backend for a URL; in a cluster, `project` selects the shard."""
    url = read(text)
    make = _SCHEMES.get(url.scheme)
    if make is None:
        from agentbus.store.registered import registered

        return registered(url, project, built_in=_SCHEMES)
    if not url.options or make is _memory:
        return make(url, project)
    rest, functions = _functions(url)
    instance = make(rest, project)
    instance.functions = functions
    return instance


def _functions(url: Url) -> tuple[Url, bool]:
    """Return a URL without the option `functions`, and the value of that option."""
    rest, wanted = [], False
    for option, value in url.options:
        if option != "functions":
            rest.append((option, value))
            continue
        if value not in ("true", "false"):
            raise ConfigError(f"{url.masked()} has functions={value!r}", hint="use true or false")
        wanted = value == "true"
    return url.__replace__(options=tuple(rest)), wanted


def async_link(backend: Backend) -> AsyncLink:
    """Return an asynchronous link to a backend, which connects on first use."""
    link = _async_link(backend)
    if not backend.debug:
        return link
    from agentbus.store.logged import LoggedAsyncLink

    return LoggedAsyncLink(link)


def _async_link(backend: Backend) -> AsyncLink:
    own = backend.async_link()
    if own is not None:
        return own
    from agentbus.store.async_connection import AsyncPlainLink

    return AsyncPlainLink(backend)


class _Cluster(Backend):
    wraps = True

    def __init__(self, name: str, finder: ClusterFinder) -> None:
        super().__init__(name, finder.find)
        self._finder = finder

    def shard(self, prefix: str) -> Callable[[float], Target]:
        return self._finder.of(prefix).find


class _Memory(Backend):
    confirms = False

    def __init__(self, server: str) -> None:
        super().__init__(f"memory://{server}", lambda _within: Target())
        self.server = server

    def link(self) -> Link:
        _needs_fakeredis()
        from agentbus.store.memory import MemoryLink

        return self.logged(MemoryLink(self.server))

    def async_link(self) -> AsyncLink:
        _needs_fakeredis()
        from agentbus.store.memory import AsyncMemoryLink

        return AsyncMemoryLink(self.server)


def _tcp(url: Url, _project: str) -> Backend:
    _only_options(url, "db")
    host, port = _one_host(url)
    target = Target(
        host=host,
        port=port or 6379,
        username=url.username,
        password=url.password,
        database=url.database(),
    )
    return Backend(url.masked(), lambda _within: target)


def _unix(url: Url, _project: str) -> Backend:
    _only_options(url, "db")
    path = "".join(host for host, _ in url.hosts) + url.path
    if not path:
        raise ConfigError(f"{url.masked()} names no socket", hint="write unix:///path/to.sock")
    target = Target(
        path=path, username=url.username, password=url.password, database=url.database()
    )
    return Backend(url.masked(), lambda _within: target)


def _tls(url: Url, _project: str) -> Backend:
    from agentbus.store.discovery import secured

    _only_options(url, "db", *_TLS_OPTIONS)
    host, port = _one_host(url)
    target = secured(url, host, port or 6379)
    return Backend(url.masked(), lambda _within: target)


def _sentinel(url: Url, _project: str) -> Backend:
    from agentbus.store.discovery import SentinelFinder

    _only_options(url, "db", "tls", "sentinel_username", "sentinel_password", *_TLS_OPTIONS)
    return Backend(url.masked(), SentinelFinder(url).find)


def _cluster(url: Url, project: str) -> Backend:
    from agentbus.store.discovery import ClusterFinder

    _only_options(url, "tls", *_TLS_OPTIONS)
    if url.database():
        raise ConfigError(
            f"{url.masked()} names a database, and a cluster has none",
            hint="leave the number out of the URL",
        )
    return _Cluster(url.masked(), ClusterFinder(url, project))


def _memory(url: Url, _project: str) -> Backend:
    _only_options(url)
    return _Memory("".join(host for host, _ in url.hosts) + url.path)


_TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
_SCHEMES: dict[str, Callable[[Url, str], Backend]] = {
    "redis": _tcp,
    "rediss": _tls,
    "unix": _unix,
    "redis+sentinel": _sentinel,
    "redis+cluster": _cluster,
    "memory": _memory,
}


def _one_host(url: Url) -> tuple[str, int | None]:
    if len(url.hosts) > 1:
        raise ConfigError(
            f"{url.masked()} names {len(url.hosts)} hosts",
            hint="several hosts need redis+cluster:// or redis+sentinel://",
        )
    return url.hosts[0] if url.hosts else ("localhost", None)


def _only_options(url: Url, *known: str) -> None:
    for key, _ in url.options:
        if key not in known:
            raise ConfigError(
                f"{url.masked()} has the unknown option {key!r}",
                hint=f"known here: {', '.join((*known, 'functions'))}"
                if known
                else "it takes none",
            )


def _needs_fakeredis() -> None:
    try:
        import fakeredis  # noqa: F401
        import lupa  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"memory:// needs the package {error.name}", hint="install agentbus-toolkit[memory]"
        ) from None
