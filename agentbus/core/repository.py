"""Finds the project name of a git repository: from its configuration, the URL of `origin`, or its path.

Git is not run. Of git's configuration the repository's own file is read, without what it includes, and for
`agentbus.trust` the user's own files, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from agentbus.core.errors import ConfigError
from agentbus.core.names import repository_address, repository_place, repository_project
from agentbus.core.settings_check import ON, checked

# Whitespace as git defines it.
_SPACE = " \t\r\n"
_HEX = frozenset("0123456789abcdefABCDEF")


def is_bare(path: str) -> bool:
    """Report whether a directory that holds a `HEAD` is a repository of this user's, or of root's."""
    head = f"{path}/HEAD"
    try:
        owners = {each.st_uid for each in (os.lstat(head), os.stat(path))}
        for part in ("objects", "refs"):
            os.stat(f"{path}/{part}/.")
        return owners <= {0, os.getuid()} and is_head(head, _config(head))
    except (OSError, ConfigError):
        return False


def is_head(path: str, text: str) -> bool:
    """Report whether git accepts a file with this text as the `HEAD` of a repository."""
    try:
        if os.readlink(path).startswith("refs/"):
            return True
    except OSError:
        # HEAD is usually a file, not a link.
        pass
    if text.startswith("ref:"):
        return text[4:].lstrip(_SPACE).startswith("refs/")
    commit = text.partition("\n")[0].rstrip(_SPACE)
    return len(commit) in (40, 64) and _HEX.issuperset(commit)


def branch(root: str) -> str | None:
    """Return the branch of the work tree at `root`, the first 8 digits of a commit, or None."""
    git = f"{root}/.git"
    try:
        if not os.path.isdir(git):
            linked = _config(git).partition("gitdir:")[2].strip()
            # The files of a bare repository are in its root.
            git = os.path.join(root, linked) if linked else root
        head = _config(f"{git}/HEAD").partition("\n")[0].strip(_SPACE)
    except ConfigError:
        return None
    named = head.removeprefix("ref:").lstrip(_SPACE)
    return named.removeprefix("refs/heads/") or None if named != head else head[:8] or None


def distrust(
    path: str, setting: str, root: str | None, common: str | None, own: Sequence[str]
) -> ConfigError | None:
    """Return the error of a setting in a config file of a repository, None if its user trusts the clone.

    The user says so in the clone's git config, or in one of the user's `own` git configs, the first of
    which wins. A bare repository is never trusted: the files that make a directory one may have come with
    others.
    """
    is_clone = common is not None and os.path.lexists(f"{root}/.git")
    for file in (f"{common}/config", *own) if is_clone else ():
        said = values(_config(file), "agentbus", "trust")
        if said and said[-1].lower() in ON:
            return None
        if said:
            break
    instead = "set AGENTBUS_URL, or url" if setting == "url" else f"set {setting}"
    return ConfigError(
        f"the config file {path!a} sets '{setting}', and this clone is not trusted with that",
        hint=("read it, then: git config agentbus.trust true; or " if is_clone else "")
        + f"{instead} in your own config file",
    )


def project(root: str, common: str | None) -> tuple[str, str]:
    """Return the project name of a repository, and the source of the name.

    `common` is the directory that its work trees share. Raises `ConfigError` if its configuration cannot be
    read, and `InvalidName`.
    """
    if common is None:
        raise ConfigError(
            f"the repository {root!a} belongs to another user, so it names no project",
            hint="set AGENTBUS_PROJECT, or use a directory of your own",
            shell_hint="name the project by --project or AGENTBUS_PROJECT, or use a directory of your own",
        )
    text = _config(f"{common}/config")
    named = [value for value in values(text, "agentbus", "project") if value]
    if named:
        source = "git config agentbus.project"
        return str(checked("project", named[-1], source)), source
    source, address = _address(common, text)
    return repository_project(address), f"{source} {address}"


def name(root: str, common: str | None) -> str:
    """Return the name of a repository; another user's has it by its path, and so has an unreadable one."""
    try:
        address = root if common is None else _address(common, _config(f"{common}/config"))[1]
    except ConfigError:
        address = root
    return repository_project(address)


def _address(common: str, text: str) -> tuple[str, str]:
    """Return whether a repository is known by its `origin` or its `path`, and the address or the path."""
    place = repository_place(os.path.realpath(common))
    origin = values(text, "remote.origin", "url")
    url = origin[0] if origin else ""
    if url and ":" not in url.partition("/")[0]:
        url = os.path.join(place, url)
    address = repository_address(url)
    if not address:
        return "path", repository_address(place)
    if address.startswith("/"):
        address = repository_address(os.path.realpath(address))
    return "origin", address


def values(text: str, section: str, key: str) -> list[str]:
    """Return the values of a key in a git config, such as `url` in section `remote.origin`."""
    matches, within = [], ""
    lines = iter(text.removeprefix("\ufeff").split("\n"))
    for line in lines:
        line = line.strip(_SPACE)
        while (len(line) - len(line.rstrip("\\"))) % 2 and line[0] not in "#;":
            line = line[:-1] + next(lines, "")
        if line.startswith("["):
            head, _, line = line[1:].partition("]")
            kind, quote, name = head.partition('"')
            within = kind.strip(_SPACE).lower() + (f".{name.rpartition(quote)[0]}" if quote else "")
        name, equals, value = line.partition("=")
        if within == section and equals and name.strip(_SPACE).lower() == key:
            matches.append(_unquoted(value))
    return matches


def _unquoted(value: str) -> str:
    """Return a value without its quotes, escapes, comment and surrounding spaces."""
    unquoted, quoted = "", False
    characters = iter(value)
    for character in characters:
        if character == "\\":
            character = next(characters, "")
            unquoted += {"n": "\n", "t": "\t", "b": "\b"}.get(character, character)
        elif character == '"':
            quoted = not quoted
        elif character in "#;" and not quoted:
            break
        else:
            unquoted += character
    return unquoted.strip(_SPACE)


def _config(path: str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "it is not a file")
            return file.read().decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ConfigError(
            f"the git config {path!a} cannot be read ({error.strerror})",
            hint="correct its permissions, or set AGENTBUS_PROJECT",
            shell_hint="correct its permissions, or name the project by --project or AGENTBUS_PROJECT",
        ) from None
