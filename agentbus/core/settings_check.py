"""Checks the settings that somebody gave, and says what would fit."""

from __future__ import annotations

from agentbus.core.errors import ConfigError
from agentbus.core.names import name, project
from agentbus.core.settings_names import LOG_LEVELS, ON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_LARGEST_BODY = 64 * 1024 * 1024


def agent(value: object) -> str:
    """Return an agent's name."""
    return name("agent", value)


def url(value: object) -> str:
    """Return the URL of a server; it is read when it is used."""
    if not isinstance(value, str):
        raise ConfigError(f"the url is a {type(value).__name__}", hint="give it as text")
    if not value:
        raise ConfigError("the url is empty", hint="leave it out to use the embedded server")
    return value


def database(value: object) -> str:
    """Return the URL of a database; it is read when it is used, and never shown."""
    if not isinstance(value, str) or not value:
        raise ConfigError(
            "the database is no text",
            hint="give its URL, or leave it out to use a file of your own",
        )
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
    # YAML reads an unquoted `off` as false.
    text = "off" if value is False else str(value).lower()
    if text not in LOG_LEVELS:
        raise ConfigError(f"{value!a} is no log level", hint=f"use one of {', '.join(LOG_LEVELS)}")
    return text


def seconds(value: object) -> float:
    """Return a number of seconds above 0."""
    try:
        number = -1.0 if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1e9:
        raise ConfigError(
            f"the deadline {value!a} is no number of seconds", hint="give one above 0"
        )
    return number


def size(value: object) -> int:
    """Return a number of bytes above 0, at most 64 MiB."""
    text = "" if isinstance(value, bool) else str(value)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    if not 0 < number <= _LARGEST_BODY:
        raise ConfigError(
            f"{value!a} is no size for a body", hint=f"give bytes, at most {_LARGEST_BODY}"
        )
    return number


def secret(value: object) -> str:
    """Return a secret to sign with; no message says what it was."""
    if not isinstance(value, str) or not 16 <= len(value) <= 256 or not value.isprintable():
        raise ConfigError(
            "the secret is not 16 to 256 printable characters of text",
            hint="make one, such as with 'openssl rand -hex 32'",
        )
    return value


def hosts(value: object) -> tuple[str, ...]:
    """Return names of hosts, given as a list or joined by commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{value!a} are no names of hosts", hint="join them by commas")
    found = tuple(part.strip().strip("[]").lower() for part in parts if part.strip())
    for host in found:
        if not (host.isascii() and host.isprintable()) or set(host) & set("/@*? "):
            raise ConfigError(
                f"{host!a} is no name of a host",
                hint="write it as it stands in the URL, no pattern",
            )
    return found


def queues(value: object) -> dict[object, object]:
    """Return the mapping of queues to policies; what it holds is read when a queue is used."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"'queues' is a {type(value).__name__}", hint="write a line for each queue below it"
        )
    return value


def health(value: object) -> dict[object, object]:
    """Return the mapping of checks to thresholds; what it holds is read when health is asked for."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"'health' is a {type(value).__name__}",
            hint="write 'check: [warning, critical]' lines below it",
        )
    return value


CHECKS: Mapping[str, Callable[[object], Any]] = {
    "agent": agent,
    "project": project,
    "url": url,
    "json": switch,
    "log_level": level,
    "deadline": seconds,
    "max_body": size,
    "database": database,
    "webhooks": switch,
    "webhook_secret": secret,
    "webhook_allow": hosts,
    "queues": queues,
    "health": health,
}
