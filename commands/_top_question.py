"""The question of `top --write` before a key acts, answered by y or by typing a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentbus.commands import _top_actions as actions
from agentbus.commands._top_actions import Action, Naming
from agentbus.commands._top_details import ErrorLetters, OneLetter, QueueTasks
from agentbus.core.errors import AgentBusError
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.commands._top_details import Detail
    from agentbus.dashboard import QueueRow
    from agentbus.queues.dead_letters import Letter

# Actions of keys on one dead letter, on all of one error, and on all letters of a queue.
_OF_ONE: dict[str, Callable[[Letter], Action | Naming]] = {
    "r": actions.of_letter,
    "c": actions.into,
    "x": actions.purge,
}
_OF_ERROR: dict[str, Callable[[ErrorLetters], Action]] = {
    "R": actions.of_error,
    "X": actions.purge_error,
}
_OF_ALL: dict[str, Callable[[str, str], Action | Naming]] = {
    "R": actions.of_letters,
    "C": actions.all_into,
    "X": actions.purge_all,
}


class Question:
    """A question about an action; `answer` is the action once it is confirmed."""

    def __init__(self, about: Action | Naming) -> None:
        self._about = about
        self._text = ""
        self.answer: Action | None = None
        self.refused = "nothing was done"

    def press(self, key: str) -> bool:
        """Handle a key; return whether the question remains open."""
        about = self._about
        if isinstance(about, Action) and not about.typed:
            self.answer = about if key in ("y", "Y") else None
            return False
        if key == "enter":
            return self._entered(about)
        if key == "backspace":
            self._text = self._text[:-1]
        elif len(key) == 1 and key.isprintable():
            self._text += key
        return key != "esc"

    def _entered(self, about: Action | Naming) -> bool:
        if isinstance(about, Action):
            if self._text in (about.typed, word(about.typed)):
                self.answer = about
            else:
                self.refused = "nothing was done: that is not the queue's name"
            return False
        try:
            self._about = about.named(self._text)
        except AgentBusError as error:
            self.refused = f"nothing was done: {error.message}"
            return False
        self._text = ""
        return True

    @property
    def line(self) -> str:
        """The line with the question."""
        about = self._about
        if isinstance(about, Naming):
            return f"{about.do}: {self._text}_"
        if about.typed:
            return f"{about.do}? type {word(about.typed)} and Enter: {self._text}_"
        return f"{about.do}? y/n"


def keys(at: Detail | None) -> str:
    """Return the keys that act, for the last line."""
    if isinstance(at, (QueueTasks, ErrorLetters, OneLetter)):
        return "r R replay  c C to another queue  x X purge  H halt"
    return "p pause  H halt"


def question(
    key: str, halted: str | None, row: QueueRow | None, at: Detail | None, chosen: Detail | None
) -> Question | None:
    """Return the question for a key, None if the key does not act here.

    `row` is the selected queue of the pane, `at` the open detail, `chosen` the detail that its line
    opens.
    """
    about: Action | Naming | None = None
    letter = next((detail.letter for detail in (chosen, at) if isinstance(detail, OneLetter)), None)
    if key == "H":
        about = actions.of_project(halted)
    elif key == "p" and row is not None:
        about = actions.of_queue(row)
    elif key in _OF_ONE and letter is not None:
        about = _OF_ONE[key](letter)
    elif key in _OF_ERROR and isinstance(at, ErrorLetters):
        about = _OF_ERROR[key](at)
    elif key in _OF_ALL and isinstance(at, QueueTasks):
        about = _OF_ALL[key](at.queue, at.group)
    return None if about is None else Question(about)
