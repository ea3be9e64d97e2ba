"""Backends that other packages register by an entry point named after the URL scheme."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError, ConfigError, UnknownBackend
from agentbus.store.connection import Backend

if TYPE_CHECKING:
    from agentbus.store.url import Url

GROUP = "agentbus.backends"


def registered(url: Url, project: str, *, built_in: Iterable[str]) -> Backend:
    """Return the registered backend for a URL; `built_in` lists further schemes for an error's hint."""
    points = entry_points(group=GROUP)
    # A package that occurs twice on the import path (such as a source tree) registers the same
    # value twice.
    values = {point.value: point for point in points if point.name.lower() == url.scheme}
    if not values:
        known = [*built_in, *sorted({point.name.lower() for point in points} - {*built_in})]
        raise UnknownBackend(
            f"there is no backend {url.scheme[:20]!a}",
            hint=f"use one of {', '.join(f'{scheme}://' for scheme in known)}",
        )
    if len(values) > 1:
        raise ConfigError(
            f"two packages register {url.scheme}://: {' and '.join(sorted(values))}",
            hint="uninstall one of them",
        )
    ((value, point),) = values.items()
    try:
        make = point.load()
    except Exception as error:
        raise ConfigError(
            f"the backend {value} cannot be loaded ({type(error).__name__}: {error})",
            hint="repair or uninstall the package that registers it",
        ) from error
    try:
        backend = make(url, project)
    except AgentBusError:
        raise
    except Exception as error:
        # Do not show the error's text, which may contain the URL's password.
        raise ConfigError(
            f"the backend {value} cannot be used ({type(error).__name__})",
            hint=f"check the URL {url.masked()}",
        ) from error
    if not isinstance(backend, Backend):
        raise ConfigError(
            f"the backend {value} returned {backend!r}, not a Backend",
            hint="see agentbus.backends",
        )
    # Links of other packages may not support the steps that replicas confirm.
    backend.confirms = type(backend).link is Backend.link
    return backend
