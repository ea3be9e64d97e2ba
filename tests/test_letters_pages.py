"""Many dead letters: they are read in pages, chosen by their error, and removed without a rewrite."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agentbus
from agentbus.commands import rerun, tidy
from agentbus.commands._declare import Args, Call
from agentbus.core.keys import Keys
from agentbus.core.settings import resolve
from agentbus.dashboard import Dashboard
from agentbus.errors import InvalidName, NotFound, UsageError
from agentbus.queues.dead_letters import DeadLetters
from agentbus.store.driver import iterate
from tests.conftest import Connect, Shell
from tests.servers import ask
from tests.tiers import on_one_store


def buried(bus: agentbus.Bus, *errors: str) -> list[str]:
    """Bury a task for each error, and return the letters' ids."""
    queue = bus.queue("mail")
    queue.publish_many(range(len(errors)))
    taken = queue.fetch(count=len(errors))
    for delivery, error in zip(taken, errors, strict=True):
        delivery.bury(error)
    return [letter.id for letter in queue.dead_letters(limit=len(errors))]


def many(bus: agentbus.Bus, number: int) -> list[str]:
    """Write letters as `bury` would; every third says `third`."""
    key = bus.scope.keys.dead_letters("mail", "default")
    for i in range(1, number + 1):
        error = "third" if i % 3 == 0 else "other"
        ask(bus, "XADD", key, f"{i}-0", "payload", f"{i}", "error", error, "attempts", "1")
    return [f"{i}-0" for i in range(1, number + 1)]


def hidden(bus: agentbus.Bus) -> int:
    """Return how many letters are purged that still take room."""
    found: int = ask(bus, "SCARD", bus.scope.keys.purged("mail", "default"))
    return found


# -- pages --


def test_letters_come_in_pages(bus: agentbus.Bus) -> None:
    ids = many(bus, 450)
    queue, pages = bus.queue("mail"), []
    after = None
    while page := queue.dead_letters(limit=200, after=after):
        pages.append([letter.id for letter in page])
        after = page[-1].id

    assert [len(page) for page in pages] == [200, 200, 50]
    assert [one for page in pages for one in page] == ids


def test_a_page_of_those_whose_error_holds_a_text(bus: agentbus.Bus) -> None:
    many(bus, 900)

    found = bus.queue("mail").dead_letters(limit=250, after="300-0", match="third")

    assert [letter.id for letter in found] == [f"{i}-0" for i in range(303, 901, 3)]


def test_letters_are_read_a_page_at_a_time(bus: agentbus.Bus) -> None:
    # given more letters than a page, of which a reader wants the first
    ids = many(bus, 1000)
    asked: list[int] = []

    def watched() -> Any:
        op, reply = DeadLetters(bus.scope, "mail", "default").each(), None
        while True:
            try:
                step = op.send(reply)
            except StopIteration:
                return
            reply = yield step
            if step.label == "XRANGE":
                asked.append(len(reply))

    reader = iterate(bus.runner.link, watched())

    assert next(reader).id == ids[0]
    assert len(asked) == 1
    assert asked[0] < 1000
    assert [letter.id for letter in reader] == ids[1:]


def test_one_letter_is_found_by_its_id(bus: agentbus.Bus) -> None:
    (first, second) = buried(bus, "a", "b")
    task = bus.queue("mail").replay(second)

    assert bus.queue("mail").letter(first).error == "a"
    assert bus.queue("mail").letter(second).replayed == task
    with pytest.raises(NotFound):
        bus.queue("mail").letter("1-1")
    with pytest.raises(NotFound):
        bus.queue("mail").letter(first, group="other")


@pytest.mark.parametrize("after", ["", "x", "5", "-", "1-1@mail"])
def test_a_page_starts_after_a_letters_id_only(bus: agentbus.Bus, after: str) -> None:
    with pytest.raises(UsageError):
        bus.queue("mail").dead_letters(after=after)


# -- replay of many --


def test_all_letters_are_replayed_once(bus: agentbus.Bus) -> None:
    ids = buried(bus, *["broken"] * 5)
    queue = bus.queue("mail")
    first = queue.replay(ids[0])

    new = queue.replay_all()

    assert len(new) == 4
    assert [letter.replayed for letter in queue.dead_letters()] == [first, *new]
    assert queue.replay_all() == []


def test_letters_are_replayed_by_their_error_into_another_queue(bus: agentbus.Bus) -> None:
    buried(bus, "refused", "broken", "refused again")

    new = bus.queue("mail").replay_all(match="refused", to="hospital")

    assert [task for task, _ in bus.queue("hospital").peek()] == new
    assert [payload for _, payload in bus.queue("hospital").peek()] == [0, 2]
    with pytest.raises(InvalidName):
        bus.queue("mail").replay_all(to="")


def test_letters_written_meanwhile_are_not_replayed(bus: agentbus.Bus) -> None:
    # given a worker that buries again at once what is replayed
    queue = bus.queue("mail")
    buried(bus, *["broken"] * 3)

    def both() -> Any:
        op, reply = DeadLetters(bus.scope, "mail", "default").replay_all(), None
        while True:
            try:
                step = op.send(reply)
            except StopIteration as end:
                return end.value
            reply = yield step
            if step.label == "replay_dead_letter":
                for delivery in queue.fetch():
                    delivery.bury("broken again")

    assert len(bus._run("replay", both())) == 3

    assert len(queue.dead_letters()) == 6


def test_tombstones_are_passed_over(bus: agentbus.Bus, project: str) -> None:
    key = Keys(project).dead_letters("mail", "default")
    ask(bus, "XADD", key, "1-1", "original_id", "1-1", "error", "trimmed away")

    assert bus.queue("mail").replay_all() == []


def test_replay_keeps_the_key_and_does_not_meet_the_dedup_window(bus: agentbus.Bus) -> None:
    # given a task with a key, buried within the window
    queue = bus.queue("mail")
    first = queue.publish("x", key="k")
    (delivery,) = queue.fetch()
    delivery.bury("broken")

    # when it is replayed
    (new,) = queue.replay_all()

    # then it is there, with its key, and the window is as it was
    (again,) = queue.fetch()
    assert (again.id, again.key) == (new, "k")
    assert queue.publish("y", key="k") == first


# -- purge --


@pytest.mark.parametrize("number", [30, 1203])
def test_purge_by_error_removes_those_and_no_others(bus: agentbus.Bus, number: int) -> None:
    ids = many(bus, number)
    queue = bus.queue("mail")

    assert queue.purge(match="third") == number // 3
    assert queue.purge(match="third") == 0

    left = [letter.id for letter in queue.dead_letters(limit=number)]
    assert left == [one for place, one in enumerate(ids, 1) if place % 3]


def test_purge_of_a_text_that_no_error_holds_removes_nothing(bus: agentbus.Bus) -> None:
    many(bus, 10)

    assert bus.queue("mail").purge(match="nowhere") == 0
    assert bus.queue("mail").purge("3-0", "4-0", match="third") == 1

    assert len(bus.queue("mail").dead_letters()) == 9


def test_one_letter_among_many_is_gone_without_a_rewrite(bus: agentbus.Bus) -> None:
    # given more letters than are written again at once
    many(bus, 1500)
    queue, key = bus.queue("mail"), bus.scope.keys.dead_letters("mail", "default")

    assert queue.purge("700-0") == 1

    # then it is gone for everybody who asks, while it still takes room
    assert (ask(bus, "XLEN", key), hidden(bus)) == (1500, 1)
    assert "700-0" not in [letter.id for letter in queue.dead_letters(limit=1500)]
    for ask_for_it in (queue.letter, queue.replay):
        with pytest.raises(NotFound):
            ask_for_it("700-0")
    assert queue.purge("700-0") == 0
    assert len(queue.replay_all(match="third")) == 500
    assert queue.purge() == 1499


def test_purged_letters_give_their_room_back_when_they_are_the_oldest(bus: agentbus.Bus) -> None:
    ids = many(bus, 2500)
    queue, key = bus.queue("mail"), bus.scope.keys.dead_letters("mail", "default")
    queue.purge(*ids[100:200])
    assert hidden(bus) == 100

    queue.purge(*ids[:100])

    assert (ask(bus, "XLEN", key), hidden(bus)) == (2300, 0)


@on_one_store
def test_a_purge_of_all_letters_whose_oldest_goes_last_leaves_none(bus: agentbus.Bus) -> None:
    ids = many(bus, 1500)
    queue, key = bus.queue("mail"), bus.scope.keys.dead_letters("mail", "default")
    queue.purge(*reversed(ids[1:]))
    assert hidden(bus) == 1499

    assert queue.purge(ids[0]) == 1

    assert (ask(bus, "XLEN", key), hidden(bus)) == (0, 0)


@on_one_store
def test_the_janitor_gives_back_what_a_purge_from_the_newest_on_left(bus: agentbus.Bus) -> None:
    ids = many(bus, 3500)
    key = bus.scope.keys.dead_letters("mail", "default")
    bus.queue("mail").publish(1)
    bus.queue("mail").fetch()
    bus.queue("mail").purge(*reversed(ids[:2400]))

    bus.tidy()

    assert (ask(bus, "XLEN", key), hidden(bus)) == (1100, 0)


def test_letters_of_megabytes_are_hidden_rather_than_written_again(bus: agentbus.Bus) -> None:
    key = bus.scope.keys.dead_letters("mail", "default")
    for number in range(1, 40):
        ask(bus, "XADD", key, f"{number}-0", "payload", '"' + "x" * 200_000 + '"', "error", "e")

    assert bus.queue("mail").purge("20-0") == 1

    assert (ask(bus, "XLEN", key), hidden(bus)) == (39, 1)
    assert len(bus.queue("mail").dead_letters()) == 38


def test_doctor_counts_no_letter_that_was_purged(bus: agentbus.Bus) -> None:
    many(bus, 1500)
    bus.queue("mail").purge("700-0", "701-0")

    (found,) = [one.found for one in bus.doctor() if one.check == "dead letters"]

    assert found == "1498 in 1 queue"


def test_letters_that_queues_share_are_counted_once_and_named_by_the_shared_name(
    connect: Connect, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bus.yaml").write_text("queues: {'*': {dead_letters: failed}}")
    monkeypatch.setenv("AGENTBUS_CONFIG", str(tmp_path / "bus.yaml"))
    bus = connect()
    for name in ("mail", "post", "news"):
        bus.queue(name).publish(name)
        for group in ("default", "audit"):
            bus.queue(name).fetch(group=group)[0].bury("broken")

    (doctor,) = [one for one in bus.doctor() if one.check == "dead letters"]
    findings = [one for one in bus.health().findings if one.check == "dead_letters"]

    assert Dashboard(bus).snapshot().totals.dead == 6
    assert doctor.found == "6 in 1 queue"
    assert {one.text for one in findings} == {
        "the group 'audit' of 'failed' has 3 dead letters",
        "the group 'default' of 'failed' has 3 dead letters",
    }
    assert {one.remedy.partition(";")[0] for one in findings} == {
        "agentbus dlq list failed --group audit",
        "agentbus dlq list failed",
    }


def test_doctor_names_the_queue_with_the_most_letters(bus: agentbus.Bus) -> None:
    key = bus.scope.keys.dead_letters("a queue", "audit")
    ask(bus, "XADD", key, "1-0", "error", "e")

    (remedy,) = [one.remedy for one in bus.doctor() if one.check == "dead letters"]

    assert remedy == "agentbus dlq list 'a queue' --group audit; then replay or purge them"


def test_letters_that_were_replayed_or_purged_are_in_no_figure(bus: agentbus.Bus) -> None:
    mail = bus.queue("mail")
    mail.publish_many(range(3))
    for one in mail.fetch(count=3):
        one.bury("broken")
    first, second, _ = mail.dead_letters()
    mail.replay(first.id)
    mail.purge(second.id)

    def figures() -> list[int | str | None]:
        found = Dashboard(bus).snapshot()
        (row,), (group,) = found.queues, mail.groups()
        (doctor,) = [one.found for one in bus.doctor() if one.check == "dead letters"]
        return [row.stats.dead, found.totals.dead, group.dead, doctor]

    assert figures() == [1, 1, 1, "1 in 1 queue"]
    mail.replay_all()
    assert figures() == [0, 0, 0, "none"]
    # They are still among the errors.
    assert Dashboard(bus).errors().replayed == 2


async def test_the_asynchronous_bus_pages_too(abus: agentbus.AsyncBus) -> None:
    queue = abus.queue("mail")

    assert await queue.dead_letters(after="1-1", match="x") == []
    assert await queue.replay_all() == []
    assert await queue.purge(match="x") == 0


# -- in the shell --


def test_the_shell_pages_by_the_last_id(real_shell: Shell) -> None:
    with agentbus.connect(
        real_shell.environment["AGENTBUS_URL"],
        project=real_shell.environment["AGENTBUS_PROJECT"],
        agent="ada",
    ) as bus:
        ids = many(bus, 300)

    def listed(*options: str) -> list[str]:
        return [one["id"] for one in real_shell.records("dlq", "list", "mail", *options)]

    assert listed() == ids[:100]
    assert listed("--after", ids[249]) == ids[250:]
    assert listed("--match", "third", "--limit", "3", "--after", "3-0") == ["6-0", "9-0", "12-0"]
    assert real_shell.run("dlq", "purge", "mail", "--after", "1-0").returncode == 2
    assert real_shell.records("dlq", "purge", "mail", "--match", "third")[0]["purged"] == 100


@pytest.fixture
def call(connect: Connect) -> Iterator[Callable[..., Call]]:
    """Return a function that makes a call of the shell's, of a queue that has done two tasks."""
    bus, made = connect(), []
    bus.queue("mail").publish_many(range(2))
    for delivery in bus.queue("mail").fetch():
        delivery.ack()

    def make(**args: Any) -> Call:
        settings = resolve({"url": bus.settings.url, "project": bus.project, "agent": "ada"})
        made.append(Call(Args(**{"queue": "mail", "dry_run": False, **args}), settings))
        return made[-1]

    yield make
    for one in made:
        if one._link is not None:
            one._link.close()
        if one._bus is not None:
            one._bus.close()


def test_replay_says_how_many(call: Callable[..., Call], capfd: pytest.CaptureFixture[str]) -> None:
    options = {param.dest: param.initial() for param in rerun.VERB.params} | {"queue": "mail"}

    rerun.run(call(**{**options, "start": "5m", "dry_run": True}))

    assert capfd.readouterr().out.startswith("mail: 2 would be delivered again to default, ")
    with pytest.raises(UsageError):
        rerun.run(call(**options))


def test_trim_says_what_was_removed(
    call: Callable[..., Call], capfd: pytest.CaptureFixture[str]
) -> None:
    tidy.run(call())

    assert capfd.readouterr().out == "mail: trimmed by 0, 0 dead consumers, 0 leftovers\n"
