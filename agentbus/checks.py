"""Checks the settings that somebody gave, and says what would fit."""

from __future__ import annotations

from agentbus.errors import ConfigError
from agentbus.names import name, project
from agentbus.settings import LOG_LEVELS, ON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def agent(value: object) -> str:
    """Return an agent's name."""
    return name("agent", value)


def url(value: object) -> str:
    """Return the URL of a server; it is read when it is used."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the url is a {type(value).__name__}", hint="give it as text")
    return value


def switch(value: object) -> bool:
    """Return whether something is switched on."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ON:
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ConfigError(f"{value!a} switches nothing", hint="use 1 or 0")


def level(value: object) -> str:
    """Return a log level."""
    text = str(value).lower() if not isinstance(value, bool) else "off"
    if text not in LOG_LEVELS:
        raise ConfigError(f"{value!a} is no log level", hint=f"use one of {', '.join(LOG_LEVELS)}")
    return text


def seconds(value: object) -> float:
    """Return a number of seconds above 0."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1e9:
        raise ConfigError(
            f"the deadline {value!a} is no number of seconds", hint="give one above 0"
        )
    return number


CHECKS: Mapping[str, Callable[[object], Any]] = {
    "agent": agent,
    "project": project,
    "url": url,
    "json": switch,
    "log_level": level,
    "deadline": seconds,
}
