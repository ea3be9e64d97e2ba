"""Notes: values that agents store for each other, by key and by tag."""

from __future__ import annotations

from agentbus.coordination import recall as reading
from agentbus.core import names
from agentbus.core.errors import AgentBusError, NoteExists, UsageError
from agentbus.core.record import Record
from agentbus.core.stream import fields, text
from agentbus.store.steps import Command, Script, one_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_TRIES = 20
_PAGE, _TITLES = 100, 1_000


class Note(Record):
    """A note; `value` is None if only the index was read. `timestamp` is unix seconds."""

    key: str
    value: str | None
    author: str
    timestamp: float
    tags: tuple[str, ...]


def jot(
    scope: Scope, key: str, value: str, tags: Sequence[str] = (), *, if_absent: bool = False
) -> Op[Note]:
    """Write a note, replace its tags and announce it on the channel, in one atomic step."""
    title = names.name("key", key)
    body = names.body("note", value, scope.max_body)
    labels = _labels(tags)
    keys, once, had = scope.keys, scope.once(), ""
    for _ in range(_TRIES):
        old = [tag for tag in had.split(",") if tag and tag not in labels]
        step = Script(
            "jot",
            (
                *(keys.jot(title), keys.jots, keys.channel, keys.agents, keys.topics, once.key),
                *(keys.tag(tag) for tag in (*labels, *old)),
            ),
            (
                *(title, body, scope.agent, ",".join(labels), had, int(if_absent)),
                *(scope.channel_trim, once.token, f"noted {title}", len(labels)),
            ),
            writes=True,
        )
        reply = yield step
        if reply[0] == b"written":
            scope.free_slot(once, step)
            return Note(title, body, scope.agent, float(reply[1]), tuple(labels))
        if reply[0] == b"exists":
            raise NoteExists(
                f"the note {title!r} exists",
                hint="leave out if_absent to replace it",
                shell_hint="leave out --if-absent to replace it",
            )
        had = text(reply[1])
    raise _contended(title)


def forget(scope: Scope, key: str) -> Op[None]:
    """Remove a note and its tag entries, and announce it on the channel, in one atomic step."""
    title = names.name("key", key)
    keys, once, had = scope.keys, scope.once(), ""
    for _ in range(_TRIES):
        step = Script(
            "forget",
            (
                *(keys.jot(title), keys.jots, keys.channel, keys.agents, keys.topics, once.key),
                *(keys.tag(tag) for tag in had.split(",") if tag),
            ),
            (title, scope.agent, had, scope.channel_trim, once.token, f"forgot {title}"),
            writes=True,
        )
        reply = yield step
        if reply[0] == b"forgotten":
            scope.free_slot(once, step)
            return
        if reply[0] == b"absent":
            raise reading.missing(title)
        had = text(reply[1])
    raise _contended(title)


def recall(scope: Scope, key: str) -> Op[Note]:
    """Return the note with this key."""
    stored = yield from reading.read(scope, key)
    return as_note(key, stored)


def notes(
    scope: Scope,
    tags: Sequence[str] = (),
    *,
    every: bool = False,
    latest: int = 10,
    values: bool = True,
) -> Op[list[Note]]:
    """Return the newest notes with any (or every) of the tags; without tags, the newest of all notes."""
    if not isinstance(latest, int) or isinstance(latest, bool) or latest < 0:
        raise UsageError(f"latest is {latest!r}", hint="give a number of notes")
    labels, asked = _labels(tags), latest
    while True:
        if labels:
            tagged = yield Script(
                "find_tagged_notes", [scope.keys.tag(tag) for tag in labels], (int(every), asked)
            )
            titles = [text(title) for title in tagged[::2]]
        else:
            titles = yield from newest(scope, asked)
        stored: list[Note] = []
        for at in range(0, len(titles), _PAGE):
            page = titles[at : at + _PAGE]
            replies = yield Script("recall", [scope.keys.jot(title) for title in page])
            # Another program may have left an index entry without a note, or of a tag that it removed.
            read = (as_note(title, flat) for title, flat in zip(page, replies, strict=True) if flat)
            stored += (note for note in read if is_tagged(note, labels, every=every))
        if len(stored) >= latest or len(titles) < asked:
            break
        asked *= 2
    if not labels:
        stored.sort(key=lambda note: -note.timestamp)
    kept = stored[:latest]
    if values:
        return kept
    return [Note(note.key, None, note.author, note.timestamp, note.tags) for note in kept]


def is_tagged(note: Note, tags: Sequence[str], *, every: bool = False) -> bool:
    """Tell whether a note has any (or every) of the tags; with no tags, every note does."""
    # Another program may write blanks between its tags.
    own = {*note.tags, *map(str.strip, note.tags)}
    return not tags or (all if every else any)(tag in own for tag in tags)


def newest(scope: Scope, latest: int) -> Op[list[str]]:
    """Return the keys of the newest notes, newest first, then of all notes that are not in the index."""
    from agentbus.store.failures import or_empty
    from agentbus.store.scan import key_bytes, members, scan

    titles: list[str] = []
    while len(titles) < latest:
        end = min(latest, len(titles) + _TITLES) - 1
        newer = Command("ZREVRANGE", scope.keys.jots, len(titles), end)
        page = yield from or_empty(one_step(newer), [])
        titles += map(text, page)
        if not page:
            break
    # A note written between two pages repeats a title: remove duplicates.
    newest = dict.fromkeys(titles)
    prefix = scope.keys.jot("")
    stored = yield from scan(scope, "jot")
    existing = {text(key_bytes(key))[len(prefix) :] for key in stored}
    indexed = yield from or_empty(members(scope.keys.jots), [])
    return [*newest, *existing.difference(newest, indexed)]


def _labels(tags: Sequence[str]) -> list[str]:
    labels = list(dict.fromkeys(names.tag(tag) for tag in names.items("tag", tags)))
    names.at_most("tag", len(labels))
    return labels


def as_note(title: str, flat: Sequence[bytes]) -> Note:
    """Convert the stored fields of a note, which any program may have written."""
    named = fields(flat)
    try:
        at = float(named.get("timestamp", "0"))
    except ValueError:
        at = 0.0
    tags = tuple(tag for tag in named.get("tags", "").split(",") if tag)
    return Note(title, named.get("value", ""), named.get("author", ""), at, tags)


def _contended(title: str) -> AgentBusError:
    return AgentBusError(
        f"the note {title!r} was changed by others during each attempt", hint="try again"
    )
