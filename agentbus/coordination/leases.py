"""Leases: the right to edit paths, with an owner, an end, a reason and a fencing token.

Leases of different agents never overlap, nor do those of two subagents of one agent; those of an agent and
of its subagent may. A single script checks that, and takes either all paths of a call or none. Leases do
not appear on the channel. All times are the server's.

Users and tools spell paths in many ways, so a pattern is relative to the repository's root. In it, `*` and
`?` match characters within a segment, and `**` matches any number of segments. A lease carries the name of
the repository: the patterns of two repositories of one project never overlap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from agentbus.coordination.lease_step import MOST_LEASES, own_repository, taking
from agentbus.core import names
from agentbus.core.client_session import has_ended, process_name
from agentbus.core.clock import of_day
from agentbus.core.errors import LeaseHeld, LeasesFull, NotFound, NotHolder, UsageError
from agentbus.core.escape import escaped
from agentbus.core.settings import repository
from agentbus.core.stream import text
from agentbus.core.validate import is_seconds
from agentbus.store.scope import client_session
from agentbus.store.steps import Script, Wait

if TYPE_CHECKING:
    from agentbus.core.errors import AgentBusError
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Once, Op


TTL = 900.0
# Seconds between two checks: another program may end a lease without ringing the bell.
RECHECK = 10.0
# Check shortly after a lease ends, not shortly before.
_SLACK = 0.002
_LONGEST_TTL = 366 * 86_400.0
# Characters shown without quotes: those of names, and those common in paths.
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-@~/*?[]+=%")
MOST_PATTERNS = 64
_MOST_SEGMENTS = 16
_MOST_LETTERS = 255
_WILD = frozenset("*?")
# Replace control characters, and wildcards in file names, by a character that `*` and `?` match.
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd")
_SIGNS = dict.fromkeys(map(ord, _WILD), "\ufffd")


@dataclass(frozen=True, slots=True)
class Lease:
    """An agent's right to edit the paths that match a pattern, from `since` to `until` (unix times).

    `token` is a fencing token of up to 64 bits that only grows; a renewal keeps it. `auto` is true for a
    lease that a hook took; `sub` is the subagent that holds it, None for the agent itself. `process` names
    the process of the client's session that took it, with which it ends. `repository` is the name of the
    repository of the pattern, None for the one around the current directory.
    """

    pattern: str
    agent: str
    why: str | None
    until: float
    since: float
    token: int
    auto: bool = False
    sub: str | None = None
    process: str | None = None
    repository: str | None = None

    @property
    def path(self) -> str:
        """The pattern; that of another repository is `/<name>/<pattern>`."""
        return located(self.pattern, self.repository or "")

    def described(self) -> str:
        """Return who holds the lease, until when and why, as worded in a refusal."""
        why = f'"{quoted(self.why)}", ' if self.why else ""
        return f"leased by {self.holder} until {of_day(self.until)} ({why}{shown(self.pattern)})"

    @property
    def holder(self) -> str:
        """The agent, and its subagent if it has one, as worded in a line."""
        return held_by(names.word(self.agent), self.sub)


@dataclass(frozen=True, slots=True)
class Leased:
    """The result of `take`: the leases in the order of the patterns, and leases taken from other agents."""

    leases: tuple[Lease, ...]
    renewed: tuple[bool, ...]
    displaced: tuple[Lease, ...]


def take(
    scope: Scope,
    paths: Iterable[str],
    *,
    why: str | None = None,
    ttl: float = TTL,
    wait: float | None = None,
    force: bool = False,
    auto: bool = False,
    sub: str | None = None,
    literal: bool = False,
    once: Once | None = None,
) -> Op[Leased]:
    """Take leases on paths or patterns, or renew this agent's, all or none.

    `wait` is the number of seconds to wait for other agents' leases to end. `force` ends other agents'
    leases that overlap. Hooks set `auto`, the subagent as `sub`, and `literal` for paths of files. `once`
    is the slot of the request, by which it can be undone. Raises `LeaseHeld`, `LeasesFull`, and
    `UsageError` for paths that cannot be leased.
    """
    wanted = _patterns(scope, paths, literal=literal)
    if not wanted:
        raise UsageError("no path was given", hint="give at least one")
    reason = "" if why is None else names.name("reason", why)
    part = scope.sub if sub is None else names.name("sub", sub)
    process = client_process(scope)
    pairs = [word for pattern in wanted for word in (pattern, "")]
    milliseconds = _milliseconds("ttl", ttl)
    until = None if not wait else scope.monotonic() + _milliseconds("wait", wait) / 1000
    once, resent = once or scope.once(), False
    while True:
        last = until is None or scope.monotonic() >= until
        options: dict[str, Any] = {"force": force, "why": reason, "auto": auto, "sub": part}
        options["process"] = process
        step = taking(scope, once, milliseconds, pairs, counts=last, **options)
        reply: list[Any] = yield step
        what, resent = reply[0], resent or step.sendings > 1
        if not resent and (what == b"taken" or last):
            scope.free_slot(once, step)
        if what == b"taken":
            return leased(reply)
        if what == b"full":
            raise LeasesFull(
                f"the project has {int(reply[1])} leases, of at most {MOST_LEASES}",
                hint="wait until one ends, drop those that are done, or lease a pattern for several paths",
            )
        if (yield from release(scope, reply[5::2])):
            continue
        if last:
            raise refusal_of(scope, wanted, int(reply[3]), reply[4:])
        left = min(int(reply[2]) / 1000 + _SLACK, RECHECK)
        remaining = (until or 0.0) - scope.monotonic()
        if remaining > 0:
            yield Wait(scope.keys.lease_bell, text(reply[1]), min(left, remaining))


def release(scope: Scope, conflicts: Iterable[bytes]) -> Op[bool]:
    """End the leases, as in a reply, whose clients' processes have ended on this host; tell whether any."""
    ended = [held for held in map(lease, conflicts) if _has_ended(held)]
    if ended:
        yield from _drop(scope, [word for held in ended for word in _pair(held)], force=True)
    return bool(ended)


def client_process(scope: Scope) -> str:
    """Return the name of the process of this agent's session of a client, '' if there is none."""
    session = None if scope.remote else client_session()
    if session is None or session.agent != scope.agent:
        return ""
    return process_name(session.pid)


def _has_ended(held: Lease) -> bool:
    return held.process is not None and has_ended(held.process)


def _pair(held: Lease) -> tuple[str, str]:
    return held.pattern, str(held.token)


def leased(reply: list[Any]) -> Leased:
    """Convert the reply of a script that took leases."""
    displaced = int(reply[1])
    rest = reply[2 + displaced :]
    return Leased(
        tuple(map(lease, rest[1::2])),
        tuple(word == b"renewed" for word in rest[::2]),
        tuple(map(lease, reply[2 : 2 + displaced])),
    )


def untake(scope: Scope, reply: list[Any]) -> Op[list[str]] | None:
    """Return an operation that ends the leases a request took, but not those it renewed, by its reply."""
    taken = leased(reply)
    new = [held for held, old in zip(taken.leases, taken.renewed, strict=True) if not old]
    return end(scope, new) if new else None


def renew(scope: Scope, held_now: Sequence[Lease], ttl: float) -> Op[tuple[Lease, ...]]:
    """Extend leases that this agent holds to `ttl` seconds from now, all or none. Raises `NotHolder`."""
    pairs = [word for held in held_now for word in _pair(held)]
    once = scope.once()
    part, process = held_now[0].sub or "" if held_now else "", client_process(scope)
    milliseconds = _milliseconds("ttl", ttl)
    step = taking(scope, once, milliseconds, pairs, sub=part, process=process)
    reply = yield step
    scope.free_slot(once, step)
    if reply[0] != b"taken":
        # A conflicting lease shows that this agent's lease has expired: otherwise nobody could have
        # taken it.
        number = int(reply[1]) if reply[0] == b"over" else 1
        raise lost([held_now[number - 1].pattern])
    return tuple(map(lease, reply[3::2]))


def drop(scope: Scope, paths: Iterable[str] = (), *, force: bool = False) -> Op[list[Lease]]:
    """End this agent's leases of paths (without paths, all of its leases), and return them.

    Those of the agent's subagents count as its own, but a subagent ends only its own leases. With `force`,
    other agents' leases of the same patterns also end. Leases that can be ended are ended
    even if it raises `NotHolder` because another agent holds the rest, or `NotFound` because nobody does.
    """
    wanted = _patterns(scope, paths)
    if force and not wanted:
        raise UsageError("no path was given", hint="name those that others are to lose")
    pairs = [word for pattern in wanted for word in (pattern, "")]
    ended, missing = yield from _drop(scope, pairs, force=force, every=not wanted)
    for number, other in missing:
        raise _not_own(scope, wanted[number - 1], other, "drop")
    return list(ended)


def not_own(scope: Scope, pattern: str, reply: bytes) -> AgentBusError:
    """Return the error for a lease that cannot be given: another agent's, nobody's, or one of several.

    If several of an agent's leases overlap, it can give only all or none of them.
    """
    other = lease(reply) if reply else None
    if other is None or not _may_end(scope, other):
        return _not_own(scope, pattern, other, "give")
    kept = shown(other.pattern)
    return LeaseHeld(
        f"{shown(pattern)} overlaps {kept}, which {names.word(scope.agent)} would keep",
        hint=f"give {kept}, too, or drop it",
        agent=other.agent,
        sub=other.sub,
        why=other.why,
        until=other.until,
        pattern=other.pattern,
        path=pattern,
    )


def _not_own(scope: Scope, pattern: str, other: Lease | None, what: str) -> NotHolder | NotFound:
    path = shown(pattern)
    if other is not None:
        return NotHolder(
            f"{path} is not {names.word(scope.agent)}'s to {what}: it is {other.described()}",
            hint=advice(scope.agent, other.agent),
        )
    return NotFound(
        f"{names.word(scope.agent)} has no lease of {path}",
        hint="bus.leases() returns what is leased; name the pattern as it is there",
        shell_hint="see 'agentbus lease' for what is leased, and name the pattern as it is there",
    )


def end(scope: Scope, held_now: Sequence[Lease]) -> Op[list[str]]:
    """End the leases with these tokens, and return the patterns of leases that had already ended."""
    pairs = [word for held in held_now for word in _pair(held)]
    _, missing = yield from _drop(scope, pairs)
    return [held_now[number - 1].pattern for number, _ in missing]


def end_of(
    scope: Scope, agent: str, held_now: Sequence[Lease] = (), sub: str = ""
) -> Op[list[Lease]]:
    """End leases of any agent, or of one of its subagents, by token; return those that were in force.

    Without tokens, all of them end.
    """
    pairs = [word for held in held_now for word in _pair(held)]
    ended, _ = yield from _drop(scope, pairs, every=not held_now, agent=agent, sub=sub)
    return list(ended)


def check(scope: Scope, wanted: Sequence[str]) -> Op[tuple[list[tuple[str, Lease]], int]]:
    """Return the leases that overlap patterns, with the pattern: up to 20 of others, then this agent's own.

    The number counts all pairs of a pattern and another agent's overlapping lease. A lease whose process
    has ended counts as free.
    """
    words = (scope.agent, scope.sub, own_repository(scope), *wanted)
    reply = yield Script("list_leases", (scope.keys.leases,), words)
    overlaps = [
        (wanted[int(number) - 1], lease(json))
        for number, json in zip(reply[1::2], reply[2::2], strict=True)
    ]
    there = [overlap for overlap in overlaps if not _has_ended(overlap[1])]
    return there, int(reply[0]) - len(overlaps) + len(there)


def check_paths(scope: Scope, paths: Iterable[str]) -> Op[dict[str, Lease | None]]:
    """Return this agent's own overlapping lease, or None, for the pattern of each path.

    Raises `LeaseHeld` if another agent's lease overlaps one of the paths.
    """
    wanted = _patterns(scope, paths)
    if not wanted:
        raise UsageError("no path was given", hint="give at least one")
    overlaps, others = yield from check(scope, wanted)
    if others:
        raise refusal(scope.agent, *overlaps[0], others - 1)
    own = dict(overlaps)
    return {pattern: own.get(pattern) for pattern in wanted}


def conflicts(scope: Scope, files: Iterable[str]) -> Op[list[tuple[str, Lease]]]:
    """Return other agents' leases that overlap files, each with the file's path.

    The paths are relative to the root. There may be any number of files; for each 64 files, at most 20
    conflicts are returned.
    """
    known = yield from leases(scope)
    if all(_agrees(scope, known_lease) for known_lease in known):
        return []
    named = of_files(files, by_worktree=scope.leases_by_worktree)
    wanted = [*named]
    overlaps: list[tuple[str, Lease]] = []
    for at in range(0, len(wanted), MOST_PATTERNS):
        page, _ = yield from check(scope, wanted[at : at + MOST_PATTERNS])
        overlaps += [(named[path], other) for path, other in page if not _agrees(scope, other)]
    return overlaps


def holder_of(scope: Scope, path: str) -> Op[Lease | None]:
    """Return a lease that overlaps a path or pattern, preferably another agent's; None if there is none."""
    overlaps, _ = yield from check(scope, _patterns(scope, [path]))
    return overlaps[0][1] if overlaps else None


def leases(scope: Scope) -> Op[list[Lease]]:
    """Return the leases in force, by pattern, agent and subagent, if their process has not ended."""
    words = (scope.agent, "", own_repository(scope))
    reply = yield Script("list_leases", (scope.keys.leases,), words)
    there = [held for held in map(lease, reply[2::2]) if not _has_ended(held)]
    return sorted(there, key=_order)


def lease(reply: bytes) -> Lease:
    """Return a lease from its lines in a reply."""
    pattern, agent, why, until, since, token, auto, sub, process, other = text(reply).split("\n")
    return Lease(
        pattern,
        agent,
        why or None,
        int(until) / 1000,
        int(since or until) / 1000,
        int(token),
        auto == "1",
        sub or None,
        process or None,
        other or None,
    )


def refusal_of(scope: Scope, wanted: Sequence[str], number: int, pairs: Sequence[Any]) -> LeaseHeld:
    """Return the error for a refusal, given pairs of a pattern's number and a lease."""
    return refusal(scope.agent, wanted[int(pairs[0]) - 1], lease(pairs[1]), number - 1)


def refusal(agent: str, path: str, conflict: Lease, others: int = 0) -> LeaseHeld:
    """Return the error for a path that others have leased; `others` counts further conflicts."""
    more = f"; {others} more conflict{'' if others == 1 else 's'}" if others else ""
    return LeaseHeld(
        f"{shown(path)} is {conflict.described()}{more}",
        # Do not suggest force: models follow hints literally.
        hint=f"do something else, or {advice(agent, conflict.agent)}",
        agent=conflict.agent,
        sub=conflict.sub,
        why=conflict.why,
        until=conflict.until,
        pattern=conflict.pattern,
        path=path,
        others=others,
    )


def advice(agent: str, holder: str) -> str:
    """Return what an agent can do about another's lease: ask, or wait for one of its subagents."""
    if holder == agent:
        return "wait: the leases of a subagent end with it"
    return f"ask: agentbus tell {names.shell_word(holder)} '…?' --wait 300"


def held_by(agent: str, sub: str | None) -> str:
    """Return the holder of a lease for display, given the agent as it is shown."""
    return f"{agent} (subagent {names.word(sub)})" if sub else agent


def _agrees(scope: Scope, held: Lease) -> bool:
    """Tell whether a lease does not conflict with those of this agent, or of its acting subagent."""
    return held.agent == scope.agent and (not scope.sub or held.sub in (None, scope.sub))


def _may_end(scope: Scope, held: Lease) -> bool:
    return held.agent == scope.agent and (not scope.sub or held.sub == scope.sub)


def _order(held: Lease) -> tuple[str, str, str]:
    return held.path, held.agent, held.sub or ""


def located(pattern: str, repository: str) -> str:
    """Return a pattern for display: after the name of its repository, '' for the reader's own."""
    return f"/{repository}/{pattern}" if repository else pattern


def lost(patterns: Sequence[str]) -> NotHolder:
    """Return the error for leases that ended early."""
    return NotHolder(
        f"the lease of {' and '.join(map(shown, patterns))} is over",
        hint="another agent may have edited there: look at what changed, and lease it again",
    )


def shown(pattern: str) -> str:
    """Return a pattern for display: quoted, if it contains unusual characters."""
    return pattern if _PLAIN.issuperset(pattern) else names.word(pattern)


def quoted(why: str) -> str:
    """Return a reason for display: on one line, without double quotes."""
    return escaped(why.replace('"', "'"))


def _drop(
    scope: Scope,
    pairs: Sequence[str],
    *,
    force: bool = False,
    every: bool = False,
    agent: str | None = None,
    sub: str = "",
) -> Op[tuple[tuple[Lease, ...], list[tuple[int, Lease | None]]]]:
    keys, once, peers = scope.keys, scope.once(), "" if agent else scope.peers
    part = sub if agent else scope.sub
    step = Script(
        "end_leases",
        (keys.leases, keys.lease_bell, once.key),
        (
            *(agent or scope.agent, part, int(force), peers, int(every), once.token),
            *(own_repository(scope), *pairs),
        ),
        writes=True,
    )
    reply = yield step
    scope.free_slot(once, step)
    ended = int(reply[0])
    rest = reply[1 + ended :]
    return tuple(map(lease, reply[1 : 1 + ended])), [
        (int(number), lease(other) if other else None)
        for number, other in zip(rest[::2], rest[1::2], strict=True)
    ]


def _milliseconds(what: str, seconds: float) -> int:
    if not is_seconds(seconds) or not 0 < seconds <= _LONGEST_TTL:
        raise UsageError(f"{what} is {seconds!r}", hint="give seconds above 0, at most a year")
    return max(1, round(seconds * 1000))


def patterns(
    paths: Iterable[str],
    *,
    by_worktree: bool = False,
    literal: bool = False,
    from_root: bool = False,
) -> list[str]:
    """Return the patterns of paths, without duplicates; relative paths start at the current directory.

    With `from_root` they start at the root, for an agent that is elsewhere.
    The root is that of the git repository around the current directory, or else this directory. With
    `by_worktree`, each pattern begins with the name of the work tree. In a `literal` path, `*` and `?` are
    characters of a name, and `**` replaces everything below 16 segments. Raises `UsageError` for a path
    outside the root, and beyond 64 patterns, 16 segments, or 255 characters in a segment.
    """
    try:
        here = os.getcwd()
    except OSError as error:
        raise _mistake(
            f"the current directory is gone ({error.strerror})", hint="change to another one"
        ) from None
    root = repository()[0] or here
    here = root if from_root else here
    first = worktree(root) if by_worktree else ""
    relative = list(
        dict.fromkeys(
            written(relative_to(path, here, root, literal=literal), first, literal=literal)
            for path in paths
        )
    )
    if len(relative) > MOST_PATTERNS:
        raise _mistake(
            f"there are {len(relative)} patterns", hint=f"give at most {MOST_PATTERNS} at a time"
        )
    return relative


def _patterns(scope: Scope, paths: Iterable[str], *, literal: bool = False) -> list[str]:
    by_worktree, remote = scope.leases_by_worktree, scope.remote
    return patterns(paths, by_worktree=by_worktree, literal=literal, from_root=remote)


def of_files(paths: Iterable[str], *, by_worktree: bool = False) -> dict[str, str]:
    """Map the patterns of any number of files to the files' paths, which are relative to the root."""
    first = worktree(repository()[0] or os.getcwd()) if by_worktree else ""
    return {written(path, first, literal=True): path for path in paths}


def relative_to(path: str, here: str, root: str, *, literal: bool = False) -> str:
    """Return a path relative to the root; a directory's ends in `/`. Raises `UsageError` if outside."""
    if not isinstance(path, str) or not path:
        raise _mistake(f"{path!a} is not a path", hint="give a path or a pattern, as in 'src/**'")
    if "\0" in path:
        raise _mistake(f"the path {path!a} holds a NUL character", hint="leave it out")
    _bytes(path)
    parts = os.path.join(here, path).split("/")
    # Resolve links up to the first wildcard, so that a link and its target are one path.
    wilds = () if literal else [at for at, part in enumerate(parts) if not _WILD.isdisjoint(part)]
    wild = next(iter(wilds), None)
    known = "/".join(parts[:wild]) or "/"
    if wild is not None:
        rest = parts[wild:]
    else:
        rest = [""] if parts[-1] in ("", ".", "..") or os.path.isdir(known) else []
    if ".." in rest:
        raise _mistake(
            f"the path {path!a} has '..' behind a wildcard", hint="write the path without '..'"
        )
    base = _below(os.path.realpath(known), root)
    # A link inside the repository may point outside: then use the link's own path.
    if base is None and not rest:
        base = _below(os.path.join(os.path.realpath(os.path.dirname(known)), parts[-1]), root)
    if base is None:
        base = _below(os.path.normpath(known), root)
    if base is None:
        raise _mistake(
            f"the path {path!a} is outside {root!a}",
            hint="lease paths within the repository, or within the current directory outside of one",
        )
    return "/".join([base, *rest] if base else rest)


def _bytes(path: str) -> bytes:
    """Return a path in bytes. Raises `UsageError` for a lone surrogate, which only JSON can hold."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _mistake(
            f"the path {path!a} is not UTF-8", hint="give it as the file system has it"
        ) from None


def written(path: str, first: str = "", *, literal: bool = False) -> str:
    """Return the pattern of a path relative to the root, after a first segment if given."""
    text = path.translate(_SIGNS) if literal else path
    if not text.isascii():
        # Normalize, because a name may be composed in two ways, and need not be valid UTF-8.
        text = normalize("NFC", _bytes(text).decode("utf-8", "replace"))
    if not text.isprintable():
        text = text.translate(_CONTROLS)
    segments: list[str] = []
    for segment in (f"{text}**" if text[-1:] in ("", "/") else text).split("/"):
        if "**" in segment:
            while "**" in segment:
                segment = segment.replace("**", "*")
            segment = "**" if segment == "*" else segment
        if segment in ("", ".") or (segment == "**" and segments[-1:] == ["**"]):
            continue
        if len(segment) > _MOST_LETTERS:
            raise _mistake(
                f"a segment of the path {path[:60]!a} has {len(segment)} characters",
                hint=f"use at most {_MOST_LETTERS}",
            )
        segments.append(segment)
    if literal and len(segments) > _MOST_SEGMENTS:
        # Never refuse an existing file: shorten its path so that covering leases are still found.
        segments[_MOST_SEGMENTS:] = ["**"]
    elif len(segments) > _MOST_SEGMENTS:
        raise _mistake(
            f"the path {path[:60]!a} has {len(segments)} segments",
            hint=f"use at most {_MOST_SEGMENTS}: '**' stands for any number",
        )
    if first:
        segments.insert(0, first)
    return "/".join(segments or ["**"])


def worktree(root: str) -> str:
    """Return the name of a work tree: git's name for a linked one, else its directory's name and `~`."""
    try:
        with open(os.path.join(root, ".git"), "rb") as file:
            said = os.fsdecode(file.read(4096)).strip()
    except OSError:
        said = ""
    if "/worktrees/" in said:
        name, mark = said.rpartition("/worktrees/")[2], ""
    else:
        # Git never uses this character in the name of a linked work tree.
        name, mark = os.path.basename(root), "~"
    return written(name.replace("/", "-") or "root", literal=True) + mark


def _below(path: str, root: str) -> str | None:
    """Return a path relative to the root; None if it is outside."""
    if path == root:
        return ""
    inside = root if root.endswith("/") else f"{root}/"
    return path[len(inside) :] if path.startswith(inside) else None


def _mistake(message: str, *, hint: str) -> UsageError:
    return UsageError(message, hint=hint)
