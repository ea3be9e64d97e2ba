"""Lists the projects on a server, and tells whether a project exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.admin.project import MANY_KEYS
from agentbus.core import names
from agentbus.core.errors import InvalidName, NotFound
from agentbus.core.keys import Keys
from agentbus.core.stream import id_time, text
from agentbus.core.validate import closest
from agentbus.store.scan import scan
from agentbus.store.steps import Batch, Command, ServerReply, floor

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Limits of keys scanned, so that the reply takes a second or two, and of keys per SCAN.
_MOST, _SCANNED = 1_000_000, 1_000
# Each project that this package has written to has one of these keys.
_MARKS = (":agents", ":beat", ":ch:main", ":metrics", ":queues")
_MARKS_IN_KEYS = tuple(mark.encode() for mark in _MARKS)
# Matches the marks, but not dedup keys, results or tokens, of which there may be many.
_PATTERN = "*:[abcmq]*"
_AT_ONCE = 100
_YEAR_9999 = 253_000_000_000


@dataclass(frozen=True, slots=True)
class Project:
    """A project on the server; a field that this server user may not read is None.

    `queues` counts the queues to which AgentBus has published. `last_activity` is the unix time of
    the last agent activity, message, heartbeat or report of counts.
    """

    project: str
    agents: int | None
    queues: int | None
    last_activity: float | None


@dataclass(frozen=True, slots=True)
class Projects:
    """The projects that were found on a server, most recently active first.

    `left_out` is the approximate number of keys that were not examined because the server has too
    many. On a cluster (`one_shard`), only the shard of the bus's own project is searched.
    """

    projects: Sequence[Project]
    left_out: int
    one_shard: bool


def listed(scope: Scope, *, one_shard: bool = False, most: int = _MOST) -> Op[Projects]:
    """Return the projects on the server, after examining about `most` of its keys."""
    yield floor()
    size = yield Command("DBSIZE")
    project_names: set[str] = set()
    examined, cursor = 0, b"0"
    while True:
        cursor, page = yield Command("SCAN", cursor, "MATCH", _PATTERN, "COUNT", _SCANNED)
        project_names.update(filter(None, map(_project_of, page)))
        examined += _SCANNED
        if int(cursor) == 0 or examined >= most:
            break
    projects: list[Project] = []
    for at in range(0, len(project_names), _AT_ONCE):
        projects += yield from described(sorted(project_names)[at : at + _AT_ONCE])
    projects.sort(key=lambda one: (-(one.last_activity or 0.0), one.project))
    left_out = max(1, size - examined) if int(cursor) else 0
    return Projects(tuple(projects), left_out, one_shard)


def exists(scope: Scope) -> Op[bool]:
    """Return whether the project has any key.

    On a server with more than 100,000 keys, keys that other programs wrote are not considered.
    """
    yield floor()
    marks = [f"{scope.keys.project}{mark}" for mark in _MARKS]
    there, size = yield Batch([("EXISTS", *marks), ("DBSIZE",)])
    if there or not isinstance(size, int) or size > MANY_KEYS:
        return bool(there)
    return any(map(scope.keys.kind, (yield from scan(scope, None))))


def missing(project: str, projects: Projects) -> NotFound:
    """Return the error for a project that does not exist, with the most similar existing name."""
    near = closest(project, [one.project for one in projects.projects])
    advice = f"the nearest there: {near}" if near else "the server has no project"
    return NotFound(
        f"there is no project {project!r}",
        hint=f"{advice}; bus.projects() returns all",
        shell_hint=f"{advice}; see 'agentbus projects', and 'agentbus whoami' for where the name is from",
    )


def _project_of(key: bytes) -> str | None:
    if not key.endswith(_MARKS_IN_KEYS):
        return None
    mark = next(mark for mark in _MARKS_IN_KEYS if key.endswith(mark))
    try:
        return names.project(key.removesuffix(mark).decode("utf-8", "surrogateescape"))
    except InvalidName:
        return None


def described(known: Sequence[str]) -> Op[list[Project]]:
    """Return the figures of those of some projects that the server has."""
    wanted: list[tuple[str | int, ...]] = []
    for keys in map(Keys, known):
        wanted += [
            ("ZCARD", keys.agents),
            ("ZCARD", keys.queues),
            ("ZREVRANGE", keys.agents, 0, 0, "WITHSCORES"),
            ("ZREVRANGE", keys.beats, 0, 0, "WITHSCORES"),
            ("XREVRANGE", keys.channel, "+", "-", "COUNT", 1),
            ("XREVRANGE", keys.metrics, "+", "-", "COUNT", 1),
        ]
    replies = yield Batch(wanted)
    each = len(wanted) // len(known)
    by_project = {name: replies[at * each : (at + 1) * each] for at, name in enumerate(known)}
    # Other programs may have keys with the same names, but of other types.
    return [_project(name, part) for name, part in by_project.items() if any(map(_is_ours, part))]


def _is_ours(reply: Any) -> bool:
    return reply.code == "NOPERM" if isinstance(reply, ServerReply) else bool(reply)


def _project(name: str, replies: Sequence[Any]) -> Project:
    agents, queues, *newest = replies
    seen, beat, spoken, counted = (one if isinstance(one, list) else [] for one in newest)
    times = [id_time(text(entry[0])) for entry in (*spoken, *counted)]
    times += [float(score) for score in seen[1:]]
    times += [float(score) / 1000 for score in beat[1:]]
    return Project(
        name,
        agents if isinstance(agents, int) else None,
        queues if isinstance(queues, int) else None,
        # Another program may have written any score, and any id.
        max((one for one in times if 0 < one < _YEAR_9999), default=None),
    )
