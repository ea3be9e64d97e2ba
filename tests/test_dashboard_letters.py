"""Dead letters by error: counted, replayed and purged, those of one error alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.dashboard import Dashboard
from agentbus.errors import UsageError
from tests.servers import ask

DOWN, WRONG = "ConnectionError: the shop is down", "ValueError: no such user"


def bury(
    bus: agentbus.Bus, queue: str, error: str, number: int = 1, group: str = "default"
) -> list[str]:
    """Leave dead letters with an error; return the ids of their tasks."""
    ids = bus.queue(queue).publish_many(range(number))
    for at in range(0, number, 100):
        for delivery in bus.queue(queue).fetch(group=group, count=min(100, number - at)):
            delivery.bury(error)
    return ids


def open_letters(bus: agentbus.Bus, queue: str, group: str = "default") -> list[str]:
    """Return the errors of the letters that were not replayed."""
    return [one.error for one in bus.queue(queue).each_dead_letter(group) if not one.replayed]


# -- groups --


def test_letters_are_grouped_by_the_first_line_of_their_error(bus):
    bury(bus, "mail", f"{DOWN}\nattempt 1 of 3", 2)
    bury(bus, "mail", f"{DOWN}\r\nattempt 2 of 3")
    bury(bus, "mail", WRONG)
    bury(bus, "shop", DOWN, group="audit")

    found = Dashboard(bus).errors()

    assert [(one.error, one.letters) for one in found.groups] == [(DOWN, 4), (WRONG, 1)]
    assert [(one.queue, one.group, one.letters) for one in found.groups[0].places] == [
        ("mail", "default", 3),
        ("shop", "audit", 1),
    ]
    assert (found.letters, found.errors, found.read, found.complete) == (5, 2, 5, True)
    queue, group, letter = found.groups[0].sample
    assert bus.queue(queue).letter(letter, group=group).error.startswith(DOWN)
    assert found.groups[0].oldest <= found.groups[0].newest


def test_the_groups_have_as_many_letters_as_dlq_lists(bus):
    bury(bus, "mail", DOWN, 7)
    bury(bus, "shop", WRONG, 5)
    purged, *_ = bus.queue("mail").dead_letters()
    bus.queue("mail").purge(purged.id)
    replayed = bus.queue("shop").dead_letters()[2]
    bus.queue("shop").replay(replayed.id)

    found = Dashboard(bus).errors()

    listed = [*bus.queue("mail").dead_letters(), *bus.queue("shop").dead_letters()]
    assert (found.letters, found.replayed) == (len(listed), 1)
    assert {one.error: one.letters for one in found.groups} == {DOWN: 6, WRONG: 5}


def test_the_groups_of_a_queue_or_of_a_group_have_no_others(bus):
    bury(bus, "mail", DOWN)
    bury(bus, "mail", WRONG, group="audit")
    bury(bus, "shop", "KeyError: 'sku'")
    dashboard = Dashboard(bus)

    assert {one.error for one in dashboard.errors(queue="mail").groups} == {DOWN, WRONG}
    assert [one.error for one in dashboard.errors(queue="mail", group="audit").groups] == [WRONG]
    assert dashboard.errors(queue="no-such-queue").groups == ()


def test_a_report_says_when_it_has_not_read_all_letters(bus):
    bury(bus, "mail", DOWN, 30)
    bury(bus, "shop", WRONG, 30)

    found = Dashboard(bus).errors(most=20)

    # Those of each queue are read alike.
    assert {one.error for one in found.groups} == {DOWN, WRONG}
    assert (found.complete, found.read) == (False, 20)


def test_only_the_largest_groups_are_returned(bus):
    for number, name in enumerate("abcde"):
        bury(bus, "mail", f"error {name}", number + 1)

    found = Dashboard(bus).errors(limit=2)

    assert [one.error for one in found.groups] == ["error e", "error d"]
    assert (found.errors, found.letters) == (5, 15)


def test_one_error_can_be_counted_alone(bus):
    bury(bus, "mail", f"{DOWN}\nattempt 1", 3)
    bury(bus, "mail", WRONG, 2)
    bury(bus, "shop", DOWN)
    bury(bus, "shop", "=")
    replayed, purged = [
        one for one in bus.queue("mail").dead_letters() if one.error.startswith(DOWN)
    ][:2]
    bus.queue("mail").replay(replayed.id)
    bus.queue("mail").purge(purged.id)
    dashboard = Dashboard(bus)

    found = dashboard.errors(error=DOWN)
    (one,) = found.groups

    assert (one.error, one.letters, one.replayed) == (DOWN, 3, 1)
    assert (found.errors, found.letters, found.replayed) == (1, 3, 1)
    assert one in dashboard.errors().groups
    assert [each.letters for each in dashboard.errors(error="=").groups] == [1]
    assert dashboard.errors(error="").groups == ()


def test_letters_of_another_program_are_counted(bus):
    ask(bus, "XADD", Keys(bus.project).dead_letters("mail", "default"), "*", "what", "a letter")
    bury(bus, "mail", WRONG)

    found = Dashboard(bus).errors()

    assert {one.error: one.letters for one in found.groups} == {"": 1, WRONG: 1}


# -- letters of one error --


def test_the_letters_of_an_error_are_read_page_by_page_newest_first(bus):
    bury(bus, "mail", DOWN, 3)
    bury(bus, "mail", WRONG)
    bury(bus, "mail", DOWN, 2)
    bury(bus, "shop", DOWN)
    dashboard, found, after = Dashboard(bus), [], None

    while page := dashboard.letters(DOWN, after=after, limit=2):
        found += page.letters
        after = page.after
        if after is None:
            break

    listed = [one.id for one in bus.queue("mail").dead_letters(match=DOWN)]
    assert [one.id for one in found if one.queue == "mail"] == listed[::-1]
    assert [one.queue for one in found] == ["mail"] * 5 + ["shop"]
    assert {one.error for one in found} == {DOWN}


def test_letters_of_any_error_are_listed_newest_first(bus):
    bury(bus, "mail", DOWN, 2)
    bury(bus, "mail", WRONG)

    found = Dashboard(bus).letters(queue="mail").letters

    assert [one.error for one in found] == [WRONG, DOWN, DOWN]


def test_an_error_is_plain_text(bus):
    bury(bus, "mail", "100%.* [a]")
    bury(bus, "mail", "100x.y a")

    assert len(Dashboard(bus).letters("100%.* [a]").letters) == 1


# -- replays --


def test_five_hundred_letters_of_one_error_are_replayed_at_once_and_no_others(bus):
    bury(bus, "mail", WRONG, 3)
    bury(bus, "mail", DOWN, 300)
    bury(bus, "mail", f"{DOWN}!", 2)
    bury(bus, "shop", DOWN, 200, group="audit")

    done = Dashboard(bus).replay_error(DOWN, limit=500)

    assert (len(done.tasks), len(set(done.tasks)), done.skipped, done.after) == (500, 500, 0, None)
    assert open_letters(bus, "mail") == [WRONG] * 3 + [f"{DOWN}!"] * 2
    assert open_letters(bus, "shop", "audit") == []
    assert bus.stats("mail")[0].backlog == 300
    assert bus.stats("shop")[0].backlog == 200


def test_a_replay_continues_where_a_page_ended(bus):
    bury(bus, "mail", DOWN, 5)
    bury(bus, "shop", DOWN, 4)
    dashboard, tasks, after, pages = Dashboard(bus), [], None, 0

    while True:
        page = dashboard.replay_error(DOWN, after=after, limit=2)
        tasks += page.tasks
        after, pages = page.after, pages + 1
        if after is None:
            break

    assert (len(tasks), len(set(tasks))) == (9, 9)
    assert pages <= 6
    assert open_letters(bus, "mail") + open_letters(bus, "shop") == []


def test_a_replay_looks_at_a_bounded_number_of_letters(bus):
    bury(bus, "mail", WRONG, 30)
    bury(bus, "mail", DOWN)
    dashboard = Dashboard(bus)

    first = dashboard.replay_error(DOWN, most=10)
    second = dashboard.replay_error(DOWN, after=first.after, most=30)

    assert (first.tasks, len(second.tasks), second.after) == ((), 1, None)


def test_large_letters_are_read_in_small_parts(bus, monkeypatch):
    monkeypatch.setattr("agentbus.dashboard.stream_walk.SCRIPTS", 2)
    monkeypatch.setattr("agentbus.dashboard.letter_boxes.SCRIPTS", 2)
    bus.queue("mail").publish_many(["x" * 250_000] * 20)
    for _ in range(4):
        for delivery in bus.queue("mail").fetch(count=5):
            delivery.bury(DOWN)
    dashboard, tasks, after, pages = Dashboard(bus), [], None, 0

    found = dashboard.errors()
    while True:
        page = dashboard.replay_error(DOWN, after=after)
        tasks += page.tasks
        after, pages = page.after, pages + 1
        if after is None or pages > 20:
            break

    assert (found.complete, found.read < 20) == (False, True)
    assert (len(set(tasks)), pages > 1) == (20, True)
    assert open_letters(bus, "mail") == []


def test_two_replays_at_the_same_time_publish_each_task_once(bus, connect):
    bury(bus, "mail", DOWN, 60)
    with ThreadPoolExecutor(4) as pool:
        pages = [*pool.map(lambda one: Dashboard(one).replay_error(DOWN), map(connect, "wxyz"))]

    assert {task for page in pages for task in page.tasks} == {
        one.replayed for one in bus.queue("mail").dead_letters()
    }
    assert bus.stats("mail")[0].backlog == 60


def test_a_letter_is_replayed_once(bus):
    bury(bus, "mail", DOWN, 3)
    dashboard = Dashboard(bus)
    dashboard.replay_error(DOWN)

    again = dashboard.replay_error(DOWN)

    assert (again.tasks, again.skipped) == ((), 3)
    assert bus.stats("mail")[0].backlog == 3


def test_a_task_that_fails_again_is_not_replayed_by_the_same_replay(bus):
    bury(bus, "mail", DOWN, 4)
    dashboard = Dashboard(bus)
    first = dashboard.replay_error(DOWN, limit=2)
    for delivery in bus.queue("mail").fetch(count=2):
        delivery.bury(DOWN)

    second = dashboard.replay_error(DOWN, after=first.after, limit=10)

    assert (len(second.tasks), second.after) == (2, None)
    assert open_letters(bus, "mail") == [DOWN] * 2


def test_letters_are_replayed_to_another_queue(bus):
    bury(bus, "mail", DOWN, 2)

    done = Dashboard(bus).replay_error(DOWN, queue="mail", to="later")

    assert [one.partition("@")[2] for one in done.tasks] == ["later"] * 2


def test_a_letter_without_a_task_is_skipped(bus):
    key = Keys(bus.project).dead_letters("mail", "default")
    ask(bus, "XADD", key, "*", "queue", "mail", "error", DOWN)
    bury(bus, "mail", DOWN)

    done = Dashboard(bus).replay_error(DOWN)

    assert (len(done.tasks), done.skipped) == (1, 1)


def test_letters_that_are_newer_than_the_servers_clock_are_replayed_once_and_purged(bus):
    bury(bus, "mail", DOWN)
    # As after the clock was set back: the ids of a stream never are.
    later = f"{round((time.time() + 3600) * 1000)}-0"
    key = Keys(bus.project).dead_letters("mail", "default")
    ask(bus, "XADD", key, later, "queue", "mail", "error", DOWN)
    ask(bus, "XDEL", key, later)
    bury(bus, "mail", DOWN, 2)
    dashboard = Dashboard(bus)

    first = dashboard.replay_error(DOWN, limit=2)
    bury(bus, "mail", DOWN, 1)
    second = dashboard.replay_error(DOWN, after=first.after)

    assert (len(first.tasks), len(second.tasks), second.after) == (2, 1, None)
    assert len(dashboard.letters(error=DOWN).letters) == 4
    assert dashboard.purge_error(DOWN).purged == 4


@pytest.mark.parametrize("after", ["", "x", "5-1", "5-1/a", "5-1/a:b:c", "/a:b:1-1", "9:9:9/::"])
def test_a_place_to_continue_is_checked(bus, after):
    bury(bus, "mail", DOWN)
    dashboard = Dashboard(bus)

    if after == "5-1":
        # Without a place it begins at the first letter, and none is that old.
        assert dashboard.replay_error(DOWN, after=after).tasks == ()
        return
    with pytest.raises(UsageError, match="does not continue"):
        dashboard.replay_error(DOWN, after=after)


# -- purges --


def test_the_letters_of_one_error_are_purged_and_no_others(bus):
    bury(bus, "mail", DOWN, 5)
    bury(bus, "mail", WRONG, 2)
    bury(bus, "shop", DOWN, 2)

    done = Dashboard(bus).purge_error(DOWN, queue="mail")

    assert (done.purged, done.after) == (5, None)
    assert open_letters(bus, "mail") == [WRONG] * 2
    assert open_letters(bus, "shop") == [DOWN] * 2


def test_a_page_is_full_where_another_queue_shares_the_letters(connect, tmp_path, monkeypatch):
    path = tmp_path / "bus.yaml"
    path.write_text("queues: {mail: {dead_letters: lost}, post: {dead_letters: lost}}")
    monkeypatch.setenv("AGENTBUS_CONFIG", str(path))
    bus = connect()
    bury(bus, "mail", DOWN, 3)
    bury(bus, "post", DOWN, 7)

    for error in (None, DOWN):
        page = Dashboard(bus).letters(error, queue="mail", limit=3)
        assert ([one.queue for one in page.letters], page.after) == (["mail"] * 3, None)
    assert len(Dashboard(bus).replay_error(DOWN, queue="mail", limit=3).tasks) == 3
    assert Dashboard(bus).purge_error(DOWN, queue="post", limit=7).purged == 7


def test_purged_letters_that_are_only_hidden_yet_are_neither_listed_nor_found(bus):
    key = Keys(bus.project).dead_letters("mail", "default")
    for number in range(1, 1_102):
        ask(bus, "XADD", key, f"{number}-0", "queue", "mail", "error", DOWN, "task_id", "x")
    bus.queue("mail").purge(*(f"{number}-0" for number in range(3, 1_102)))

    page = Dashboard(bus).letters(queue="mail", limit=2)
    found = Dashboard(bus).search(DOWN)

    assert ask(bus, "XLEN", key) > 1_000
    assert ([one.id for one in page.letters], page.after) == (["2-0", "1-0"], None)
    assert [one.letter for one in found.hits] == ["2-0", "1-0"]


async def test_an_async_bus_has_the_same_letters(abus):
    queue = abus.queue("mail")
    await queue.publish_many(range(3))
    for delivery in await queue.fetch(count=3):
        await delivery.bury(DOWN)
    dashboard = Dashboard(abus)

    assert (await dashboard.errors()).letters == 3
    assert len((await dashboard.letters(DOWN)).letters) == 3
    assert len((await dashboard.replay_error(DOWN, limit=2)).tasks) == 2
    assert (await dashboard.purge_error(DOWN)).purged == 3
