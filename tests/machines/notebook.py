"""The notebook against a model: notes, their tags, and what is newest."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from agentbus import NoteExists, NotFound
from tests.machines.base import Machine, refused

# What a careless program takes for a separator or a pattern.
TITLES = ("how", "a:b", "*", "how?")
TAGS = ("docker", "ci", "a:b", "[x]*")
titles = st.sampled_from(TITLES)
tagged = st.lists(st.sampled_from(TAGS), max_size=3)
agents = st.sampled_from(["ada", "bob"])


class Noted(NamedTuple):
    """A note of the model, without its key."""

    value: str
    author: str
    tags: tuple[str, ...]


class NotebookMachine(Machine):
    """Two agents write, find and forget notes."""

    def __init__(self) -> None:
        super().__init__()
        # The newest last, as a dict keeps them if a key is taken out before it is put in again.
        self.notes: dict[str, Noted] = {}

    @rule(agent=agents, key=titles, value=st.text("ab\n@é", min_size=1, max_size=3), tags=tagged,
          if_absent=st.booleans())  # fmt: skip
    def jot(self, agent: str, key: str, value: str, tags: list[str], if_absent: bool) -> None:
        if if_absent and key in self.notes:
            with refused(NoteExists):
                self.bus(agent).jot(key, value, tags=tags, if_absent=True)
            return
        note = self.bus(agent).jot(key, value, tags=tags, if_absent=if_absent)
        self.notes.pop(key, None)
        self.notes[key] = Noted(value, agent, tuple(dict.fromkeys(tags)))
        assert self._seen(note) == (key, self.notes[key])
        self.expect_event(agent, "jotted", note=key)

    @precondition(lambda self: self.notes)
    @rule(agent=agents, key=titles)
    def forget(self, agent: str, key: str) -> None:
        if self.notes.pop(key, None):
            self.bus(agent).forget(key)
            self.expect_event(agent, "forgotten", note=key)
        else:
            with refused(NotFound):
                self.bus(agent).forget(key)

    @precondition(lambda self: self.notes)
    @rule(tags=tagged, every=st.booleans(), latest=st.integers(0, 5))
    def find(self, tags: list[str], every: bool, latest: int) -> None:
        fits = all if every else any
        wanted = [
            (key, note)
            for key, note in reversed(self.notes.items())
            if not tags or fits(tag in note.tags for tag in tags)
        ][:latest]
        found = self.bus().notes(tags, all=every, latest=latest)
        assert [self._seen(note) for note in found] == wanted

    @precondition(lambda self: self.notes)
    @rule(tag=st.sampled_from([None, *TAGS]), latest=st.integers(0, 5))
    def list_(self, tag: str | None, latest: int) -> None:
        wanted = [
            key for key, note in reversed(self.notes.items()) if tag is None or tag in note.tags
        ]
        found = self.bus().list_(tag=tag, latest=latest)
        assert [note.key for note in found] == wanted[:latest]
        assert all(note.value is None for note in found)

    @precondition(lambda self: self.notes)
    @rule(key=titles)
    def recall(self, key: str) -> None:
        if key in self.notes:
            assert self._seen(self.bus().recall(key)) == (key, self.notes[key])
        else:
            with refused(NotFound):
                self.bus().recall(key)

    @invariant()
    def the_newest_notes_are_the_models(self) -> None:
        found = self.bus().notes(latest=100)
        assert [self._seen(note) for note in found] == [*reversed(self.notes.items())]

    @invariant()
    def the_indices_hold_the_notes_and_nothing_else(self) -> None:
        indices = self.ask_all(*(("ZREVRANGE", self.keys.tag(tag), 0, -1) for tag in TAGS))
        for tag, found in zip(TAGS, indices, strict=True):
            wanted = [key for key, note in reversed(self.notes.items()) if tag in note.tags]
            assert [title.decode() for title in found] == wanted

    @invariant()
    def the_channel_says_what_happened(self) -> None:
        self.check_events()

    @staticmethod
    def _seen(note: Any) -> tuple[str, Noted]:
        return note.key, Noted(note.value, note.author, note.tags)
