"""Keeps what was in a client's settings before the client's own commands changed them, and gives it back.

Commands of clients rewrite whole files: Copilot drops comments, Claude Code the layout.
"""

from __future__ import annotations

import contextlib
import json
import os

from agentbus.agents.clients import CLIENTS
from agentbus.agents.install import edit
from agentbus.agents.install.folder import Installation, base, user_directory
from agentbus.agents.install.steps import shown
from agentbus.core.errors import AgentBusError, Refused
from agentbus.core.settings_check import make_private

_KEPT, _OURS = "kept", b"agentbus@agentbus"


def settings(client: str, place: Installation) -> list[str]:
    """Return the files that a client's commands change, for its scope; `Refused` as `inside` does."""
    facts = CLIENTS.get(client)
    if facts is None or not facts.settings:
        return []
    paths = [os.path.realpath(os.path.join(user_directory(client), facts.settings))]
    if place.scope == "project" and facts.project:
        paths.append(place.inside(os.path.join(place.directory(client), facts.settings)))
    return paths


def check(client: str, place: Installation) -> None:
    """Raise `Refused` for settings that Claude Code cannot change, before it has done half of it."""
    for path in settings(client, place) if CLIENTS[client].strict else ():
        text = (edit.read(path) or b"").decode("utf-8-sig", "replace")
        try:
            json.loads(text or "{}")
        except ValueError as error:
            raise Refused(
                f"{path} is not JSON, so Claude Code does not change it: {error}",
                hint="mend it; it may have no comments",
            ) from None


class Kept:
    """A client's settings as they were before its commands run."""

    def __init__(self, client: str, place: Installation) -> None:
        self._place = place
        self._before = {path: edit.read(path) for path in settings(client, place)}
        # Files that lost comments.
        self.lost: list[str] = []
        merged = place.record.merged
        # Files that nobody else has changed since the last commands.
        self._untouched = {
            path
            for path, before in self._before.items()
            if path in merged and merged[path]["digest"] == edit.digest(before or b"")
        }

    def remember(self) -> None:
        """Record what the commands have changed, with a copy, and which files lost comments."""
        merged, self.lost = self._place.record.merged, []
        for path, before in self._before.items():
            after = edit.read(path)
            if after == before:
                continue
            known = merged[path] if path in self._untouched else None
            if known is None:
                # A file that names our plugin is not the user's original.
                clean = before is not None and _OURS not in before
                backup = _copy(before) if before is not None and clean else None
                known = {"backup": backup, "existed": before is not None, "folders": []}
            merged[path] = known | {"digest": edit.digest(after or b"")}
            if before is not None and _comments(before) > _comments(after or b""):
                self.lost.append(path)

    def follow(self) -> None:
        """Record what commands that take it out have made of the settings so far."""
        for path in self._untouched:
            self._place.record.merged[path]["digest"] = edit.digest(edit.read(path) or b"")

    def give_back(self, *, shared: bool) -> list[str]:
        """Give back what was there, of files that only commands of ours have changed, and return these.

        With `shared`, the user's own settings are also those of another installation, and stay.
        """
        merged, given = self._place.record.merged, []
        for at, path in enumerate(self._before):
            known = merged.get(path)
            if known is None or (shared and at == 0):
                continue
            del merged[path]
            kept = edit.read(known["backup"]) if known["backup"] else None
            if (
                path in self._untouched
                and known["existed"] == (kept is not None)
                and edit.read(path) != kept
            ):
                edit.put_back(path, kept)
                given.append(path)
                if kept is None:
                    # A directory that somebody uses stays.
                    with contextlib.suppress(OSError):
                        os.rmdir(os.path.dirname(path))
            if known["backup"]:
                edit.put_back(known["backup"], None)
        return given


def line(path: str, *, lost: bool) -> str:
    """Return the line about a file that lost its comments, or is now what it was."""
    if lost:
        return f"keep a copy of {shown(path)}, which lost its comments"
    return f"{'give back' if os.path.exists(path) else 'remove'} {shown(path)}"


def _comments(data: bytes) -> int:
    """Return how many marks of comments are in a text, those within strings among them."""
    return data.count(b"//") + data.count(b"/*") + data.count(b"#")


def _copy(data: bytes) -> str:
    """Keep a copy in the directory of the record, for this user alone: settings may hold passwords."""
    place = os.path.join(base(), _KEPT)
    path = os.path.join(place, edit.digest(data)[:32])
    try:
        make_private(place)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise AgentBusError(f"{path} cannot be written ({error.strerror})") from None
    return path
