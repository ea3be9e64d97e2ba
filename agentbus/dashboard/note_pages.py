"""The notes of a project, page by page, filtered by key and tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.coordination import notes
from agentbus.core.stream import text
from agentbus.dashboard.matching import FOLDED
from agentbus.dashboard.parts import Part
from agentbus.store.failures import or_empty
from agentbus.store.scan import key_bytes, scan
from agentbus.store.steps import Batch, Command, Script, one_step

if TYPE_CHECKING:
    from agentbus.coordination.notes import Note
    from agentbus.dashboard.figures import RowRange
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum number of notes in a list, and of tags that the list counts.
_MOST, _TAGS = 100_000, 1_000
# Maximum number of notes per script.
_PAGE = 50


@dataclass(frozen=True, slots=True)
class NotePage:
    """Notes, newest first: the requested rows, and the number of matches.

    A value of more than 4,000 bytes is cut; `cut` maps the keys of these notes to the sizes of
    their values in bytes. `tags` are the numbers of notes by tag, most used first.
    """

    notes: tuple[Note, ...]
    matching: int
    cut: dict[str, int]
    tags: dict[str, int]


class NoteList:
    """The keys and tags of notes, cached longer the more there are; values are current."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._titles = Part(scope.monotonic, lambda: notes.newest(scope, _MOST))
        self._tags = Part(scope.monotonic, lambda: _tags(scope))

    def forget(self) -> None:
        """Make the next use read the lists again."""
        self._titles.forget()
        self._tags.forget()

    def page(self, wanted: RowRange, tag: str | None) -> Op[NotePage]:
        """Return a page of the notes with a tag whose keys contain a text."""
        scope = self._scope
        tags = yield from self._tags.get()
        if tag is None:
            titles = yield from self._titles.get()
        else:
            key = scope.keys.tag(tag)
            found = yield from or_empty(one_step(Command("ZREVRANGE", key, 0, _MOST - 1)), [])
            titles = [text(title) for title in found]
        if wanted.match is not None:
            sought = wanted.match.casefold()
            titles = [title for title in titles if sought in title.casefold()]
        shown = titles[max(0, wanted.offset) :][: max(0, wanted.limit)]
        rows, cut = [], {}
        for at in range(0, len(shown), _PAGE):
            page = shown[at : at + _PAGE]
            reply = yield Script(
                "read_note_previews", [scope.keys.jot(title) for title in page], (FOLDED,)
            )
            for title, (size, flat) in zip(page, reply, strict=True):
                # It may have been deleted since the list was read, and another program leaves old tags.
                if not flat:
                    continue
                note = notes.as_note(title, flat)
                if not notes.is_tagged(note, () if tag is None else [tag]):
                    continue
                rows.append(note)
                if int(size) > FOLDED:
                    cut[title] = int(size)
        return NotePage(tuple(rows), len(titles), cut, tags)


def _tags(scope: Scope) -> Op[dict[str, int]]:
    """Return the number of notes for each tag, for at most 1,000 tags."""
    prefix = len(scope.keys.tag(""))
    found = sorted((yield from scan(scope, "jots_by_tag")))[:_TAGS]
    counts = (yield Batch([("ZCARD", key_bytes(key)) for key in found])) if found else []
    known = {
        text(key_bytes(key))[prefix:]: count
        for key, count in zip(found, counts, strict=True)
        if isinstance(count, int) and count
    }
    return dict(sorted(known.items(), key=lambda one: (-one[1], one[0])))
