"""Checks settings, and reports valid alternatives to wrong ones."""

# mypy: disable-error-code="func-returns-value"
from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping

from agentbus.core import names
from agentbus.core.errors import ConfigError, InvalidName, UsageError
from agentbus.core.timespec import duration
from agentbus.core.validate import Located, Problems

_LARGEST_BODY = 64 * 1024 * 1024
ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


def checked(
    setting: str,
    value: object,
    source: str,
    line: int = 0,
    pick: Callable[[str, object], tuple[object, int]] | None = None,
) -> object:
    """Return a setting's value, converted to its type. Raises `ConfigError` or `InvalidName`.

    `pick` returns another setting's value and its line in its file.
    """
    # Do not name a place for a flag: the user has just typed it.
    problems = Problems("" if source == "flag" else source)
    result = CHECKS[setting](Located(value, problems, setting, line=line))
    if setting == "agent" and str(result).lower() in names.RESERVED and pick is not None:
        allowed, at = pick("agent.reserved", False)
        if not checked("agent.reserved", allowed, "agent.reserved", at):
            problems.add(
                line,
                f"the name {result!a} is reserved: readers would take it for another kind of speaker",
                f"choose another name, such as 'human:{result}' for a person, or set"
                " agent.reserved: true in your own config file",
            )
    if problems:
        raise problems.error(InvalidName if setting in ("agent", "project") else ConfigError)
    return result


def own_directory(path: str) -> None:
    """Make a directory private to this user. Raises `ConfigError` unless it is a directory of this user's.

    The parent directory must belong to this user or to root.
    """
    status, me = os.lstat(path), os.getuid()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != me:
        raise ConfigError(
            f"{path} is not a directory of this user's",
            hint="set XDG_STATE_HOME to a directory of your own",
        )
    above = os.path.dirname(path)
    if os.stat(above).st_uid not in (0, me):
        raise ConfigError(
            f"{above} belongs to another user, who could replace what is in it",
            hint="set XDG_STATE_HOME to a directory of your own",
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        os.chmod(path, 0o700)


def make_private(path: str) -> None:
    """Create a directory and its parents for this user alone, regardless of the umask; raises `OSError`."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above not in ("", path):
        make_private(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def existing_file(path: str) -> str:
    """Return the path of a chosen config file. Raises `ConfigError` if it does not exist."""
    if os.path.isfile(path):
        return path
    raise ConfigError(
        f"the config file {path!a} is not there",
        hint="correct AGENTBUS_CONFIG",
        shell_hint="correct --config or AGENTBUS_CONFIG",
    )


def _project(given: Located) -> str | None:
    try:
        return names.project(given.value)
    except UsageError as error:
        return given.add(error.message, error.hint or "correct it")


def _url(given: Located) -> str | None:
    # The URL is parsed when it is used; an error here could show its password.
    if isinstance(given.value, str) and given.value:
        return given.value
    return given.wrong("a URL as text, or leave it out for the default")


def _switch(given: Located) -> bool | None:
    text = str(given.value).lower()
    if text in ON:
        return True
    return False if text in _OFF else given.wrong("1 or 0")


def _level(given: Located) -> str | None:
    # YAML reads an unquoted `off` as false.
    text = "off" if given.value is False else str(given.value).lower()
    return (
        text if text in names.LOG_LEVELS else given.wrong(f"one of {', '.join(names.LOG_LEVELS)}")
    )


def _seconds(given: Located) -> float | None:
    try:
        number = -1.0 if isinstance(given.value, bool) else float(given.value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    return number if 0 < number < 1e9 else given.wrong("a number of seconds above 0")


def _size(given: Located) -> int | None:
    text = given.value
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 12:
        given.value = int(text)
    return given.whole(1, _LARGEST_BODY)


def _count(given: Located) -> int | None:
    text = given.value
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 12:
        given.value = int(text)
    return given.whole(0, 1_000_000)


def _secret(given: Located) -> str | None:
    value = given.value
    if isinstance(value, str) and 16 <= len(value) <= 256 and value.isprintable():
        return value
    return given.add(
        f"{given.what} is not 16 to 256 printable characters of text",
        "make one, such as with 'openssl rand -hex 32'",
    )


# A host, perhaps with a port, as it stands in a URL; or an address of IPv6 without its brackets.
_HOST = re.compile(
    r"(?:\[[0-9a-f:.]+\]|[^]\[:/@*? ]+)(?::([0-9]{1,5}))?|[0-9a-f.]*:[0-9a-f.]*:[0-9a-f:.]*"
)


def _hosts(given: Located) -> tuple[str, ...] | None:
    parts = given.value.split(",") if isinstance(given.value, str) else given.value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return given.wrong("names of hosts, joined by commas")
    hosts = tuple(part.strip().lower() for part in parts if part.strip())
    for host in hosts:
        match = _HOST.fullmatch(host) if host.isascii() and host.isprintable() else None
        if match is None or not 0 < int(match[1] or 1) < 65_536:
            return given.add(
                f"{given.what} names {host!a}",
                "write host, or host:port, as it stands in the URL, not a pattern",
            )
    return tuple(host.strip("[]") if host[-1] == "]" else host for host in hosts)


def _lease_scope(given: Located) -> str | None:
    scopes = ("project", "repository", "worktree")
    return str(given.value) if given.value in scopes else given.wrong(", ".join(scopes))


def _hook_text(given: Located) -> str | None:
    said = ("counts", "quote")
    return str(given.value) if given.value in said else given.wrong(" or ".join(said))


def _hook_topics(given: Located) -> str | None:
    try:
        return names.topics(given.value)
    except UsageError as error:
        return given.add(error.message, error.hint or "correct it")


def _channel(given: Located) -> tuple[int, float | None] | None:
    fields = given.fields(("bound", "keep"))
    bound, keep = fields.get("bound"), fields.get("keep")
    most = names.CHANNEL_BOUND if bound is None else bound.whole(100, 1_000_000_000)
    seconds = None if keep is None else duration(str(keep.value))
    if keep is not None and (seconds is None or not 60 <= seconds < 1e9):
        return keep.wrong("a time from 1m on, such as 30d")
    return None if most is None else (most, seconds)


def _mapping(given: Located) -> object:
    # The commands that use the mapping check its contents.
    if given.value is not None and not isinstance(given.value, dict):
        return given.wrong("a mapping: write its lines below it")
    return given.value or {}


CHECKS: Mapping[str, Callable[[Located], object]] = {
    "agent": lambda given: given.name("agent"),
    "agent.reserved": _switch,
    "project": _project,
    "url": _url,
    "json": _switch,
    "log_level": _level,
    "deadline": _seconds,
    "max_body": _size,
    "exchange_limit": _count,
    "database": _url,
    "app": lambda given: given.name("app"),
    "webhooks": _switch,
    "webhook_secret": _secret,
    "webhook_allow": _hosts,
    "queues": _mapping,
    "health": _mapping,
    "channel": _channel,
    "lease.scope": _lease_scope,
    "hook.text": _hook_text,
    "hook.topics": _hook_topics,
}
