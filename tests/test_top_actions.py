"""What the keys of `top --write` do with dead letters: each after a question, and said to all."""

from __future__ import annotations

import json
import pathlib

import pytest

import agentbus
from agentbus.commands._top_actions import Person
from agentbus.commands._top_view import View
from agentbus.core.settings import log_path
from agentbus.dashboard import Dashboard
from agentbus.queues.dead_letters import Letter


class Screen:
    """A view with the dead letters of a queue open, and the person who acts, on the same server."""

    def __init__(self, bus: agentbus.Bus, *, writes: bool = True) -> None:
        self.bus = bus
        self.view = View(1.0, writes=writes)
        self.view.wanted(24)
        self._person = Person(bus.settings, "ada")
        self._person._bus.close()
        self._person._bus = bus
        self._dashboard = Dashboard(bus)
        self.read()
        self.press("enter", "left")
        self.read()
        self.press("end")

    def read(self) -> None:
        detail = self.view.stack[-1] if self.view.stack else None
        lines = [] if detail is None else detail.read(self.bus, self._dashboard)
        self.view.frame(self._dashboard.snapshot(), detail, lines)

    def press(self, *keys: str) -> str:
        """Press keys; return what was done by the action that they confirmed, or ''."""
        for key in keys:
            self.view.press(key)
        action, self.view.confirmed = self.view.confirmed, None
        return "" if action is None else self._person.act(action)

    @property
    def last(self) -> str:
        return self.view.draw(120, 24, 0.0)[-1].plain.rstrip()


@pytest.fixture
def screen(bus) -> Screen:
    bury(bus, "mail", 3)
    return Screen(bus)


def bury(bus: agentbus.Bus, queue: str, number: int) -> None:
    bus.queue(queue).publish_many(range(number))
    for delivery in bus.queue(queue).fetch(count=number):
        delivery.bury("broken")


def letters(bus: agentbus.Bus, queue: str = "mail") -> list[Letter]:
    return bus.queue(queue).dead_letters()


def test_a_dead_letter_is_purged_once_the_queue_is_typed(screen, bus):
    doomed = letters(bus)[-1].id
    screen.press("x")
    assert screen.last == f"purge the dead letter {doomed} of mail? type mail and Enter: _"

    assert screen.press(*"mail", "enter") == f"dead letter {doomed} of mail purged"
    assert doomed not in [one.id for one in letters(bus)]
    assert bus.overhear(last=1).__next__().text == f"dead letter {doomed} of mail purged"


@pytest.mark.parametrize("keys", [("y",), ("y", "enter"), (*"mai", "enter"), (*"mail", "esc")])
def test_nothing_is_purged_unless_the_queue_is_typed(screen, bus, keys):
    screen.press("X", *keys, "esc")

    assert screen.view.asked is None
    assert len(letters(bus)) == 3


def test_a_name_that_is_typed_wrongly_is_corrected_or_refused(screen, bus):
    assert screen.press("X", *"mails", "backspace", "enter") == (
        "3 dead letters of mail default purged"
    )
    bury(bus, "mail", 1)
    screen.press("X", *"other", "enter")
    assert screen.last == "nothing was done: that is not the queue's name"
    assert len(letters(bus)) == 1


def test_a_dead_letter_is_copied_into_another_queue(screen, bus):
    chosen = letters(bus)[-1].id
    screen.press("c", *"second")
    assert screen.last == f"replay the dead letter {chosen} of mail into the queue: second_"
    screen.press("enter")
    assert screen.last == f"replay the dead letter {chosen} of mail into second? y/n"

    done = screen.press("y")

    assert done.startswith(f"dead letter {chosen} of mail replayed as ")
    assert done.endswith(" into second")
    assert [one.payload for one in bus.queue("second").inspect()] == [2]


def test_a_dead_letter_that_was_replayed_is_not_copied_again(screen, bus):
    task = bus.queue("mail").replay(letters(bus)[-1].id)

    done = screen.press("c", *"second", "enter", "y")

    assert done.endswith(f"was replayed before, as {task}")
    assert bus.queues() == ["mail"]


def test_all_dead_letters_are_copied_into_another_queue(screen, bus):
    done = screen.press("C", *"second", "enter", "y")

    assert done == "3 dead letters of mail default replayed into second"
    assert [one.payload for one in bus.queue("second").inspect()] == [0, 1, 2]


@pytest.mark.parametrize("name", ["", "~webhooks", "a" * 257])
def test_a_queue_that_nobody_may_publish_to_is_refused(screen, bus, name):
    screen.press("C", *name, "enter")

    assert screen.last.startswith("nothing was done: ")
    assert (screen.view.asked, bus.queues()) == (None, ["mail"])


def test_keys_of_dead_letters_act_only_where_the_view_may_write(bus):
    bury(bus, "mail", 1)
    screen = Screen(bus, writes=False)

    for key in "rRcCxX":
        assert screen.press(key, *"mail", "enter", "y") == ""
    assert len(letters(bus)) == 1
    assert bus.queues() == ["mail"]


def test_a_queue_whose_name_no_key_types_is_confirmed_as_it_is_shown(bus):
    bury(bus, "a\u202eb", 1)
    screen = Screen(bus)
    screen.press("X")
    shown = screen.last.partition(" type ")[2].partition(" and Enter")[0]

    assert screen.press(*shown, "enter").startswith("1 dead letter of ")
    assert letters(bus, "a\u202eb") == []


def test_what_a_person_did_is_in_the_log(screen):
    screen.press("X", *"mail", "enter")

    (entry,) = map(json.loads, pathlib.Path(log_path()).read_text().splitlines())
    assert (entry["verb"], entry["agent"]) == ("top", "human:ada")
    assert entry["action"] == "purge all dead letters of mail default"
    assert entry["outcome"] == "3 dead letters of mail default purged"


def test_all_letters_of_one_cause_are_replayed(bus):
    queue = bus.queue("mail")
    queue.publish_many(["a", "b", "c"])
    for number, delivery in enumerate(queue.fetch(count=3)):
        delivery.bury("no disk" if number == 2 else f"'user{number}@example.org' is not an address")
    screen = Screen(bus)
    screen.press("home")
    while "2 letters: " not in screen.view.lines[screen.view._line].text:
        screen.press("down")
    screen.press("enter")
    screen.read()

    said = screen.press("R", "y")

    assert said.startswith("2 dead letters of mail default with ")
    assert sorted(letter.payload for letter in queue.dead_letters() if not letter.replayed) == ["c"]
    assert screen.press("X", *"mail", "enter").endswith(" purged")
    assert [letter.payload for letter in queue.dead_letters()] == ["c"]
