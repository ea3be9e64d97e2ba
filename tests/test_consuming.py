"""What a consumer says of its tasks counts while they are its own, whatever others do to the streams."""

from __future__ import annotations

import threading
from typing import Any

import agentbus
from agentbus.core.keys import Keys
from agentbus.queues.consumer import QueueConsumer, Taken
from agentbus.queues.ids import PRIORITIES
from agentbus.store.steps import Script, one_step
from tests.conftest import Connect
from tests.servers import ask


def consumer(bus: agentbus.Bus, name: str = "me") -> QueueConsumer:
    """Return a consumer of the queue `mail`, with its group made."""
    made = QueueConsumer(bus.scope, "mail", "default", name)
    bus._run("work", made.prepare())
    return made


def do(bus: agentbus.Bus, op: Any) -> Any:
    return bus._run("work", op)


def taken(bus: agentbus.Bus, by: QueueConsumer, number: int) -> list[Taken]:
    """Publish so many tasks and take them."""
    bus.queue("mail").publish_many(range(number))
    return fetched(bus, by, number)


def fetched(bus: agentbus.Bus, by: QueueConsumer, number: int) -> list[Taken]:
    """Take new tasks."""
    _, found = do(bus, by.ack_and_take({}, 0.0, number))
    return list(found)


def acknowledged(
    bus: agentbus.Bus, by: QueueConsumer, priority: str, ids: list[bytes]
) -> list[bytes]:
    """Acknowledge tasks; returns those that were no longer the consumer's."""
    stale, _ = do(bus, by.ack_and_take({priority: ids}, 0.0, 0))
    return list(stale)


def pending(bus: agentbus.Bus, project: str) -> list[tuple[bytes, bytes]]:
    """Return the ids of the pending entries of `mail`, each with its holder."""
    found = ask(bus, "XPENDING", Keys(project).queue("mail"), "default", "-", "+", 100)
    return [(entry[0], entry[1]) for entry in found]


def test_tasks_that_another_took_over_are_not_acknowledged_with_the_rest_of_a_batch(
    bus: agentbus.Bus, connect: Connect, project: str
) -> None:
    # given five tasks, of which another consumer took two over meanwhile
    mine = consumer(bus)
    ids = [task.entry_id for task in taken(bus, mine, 5)]
    ask(bus, "XCLAIM", Keys(project).queue("mail"), "default", "thief", 0, ids[1], ids[4])

    # when the first one acknowledges them all
    stale = acknowledged(bus, mine, "normal", ids)

    # then only its own count, and those of the other are the other's still
    assert stale == [ids[1], ids[4]]
    assert pending(bus, project) == [(ids[1], b"thief"), (ids[4], b"thief")]


def test_tasks_around_one_that_still_runs_are_acknowledged(bus: agentbus.Bus, project: str) -> None:
    mine = consumer(bus)
    ids = [task.entry_id for task in taken(bus, mine, 6)]

    assert acknowledged(bus, mine, "normal", [ids[0], ids[3], ids[5]]) == []

    assert [one for one, _ in pending(bus, project)] == [ids[1], ids[2], ids[4]]


def turned_over(
    bus: agentbus.Bus, by: QueueConsumer, ids: list[bytes], count: int = 10
) -> tuple[list[bytes], list[Any]]:
    """Acknowledge all that was taken, and take more; returns the ids that were lost, and payloads."""
    stale, found = do(bus, by.turn_all_done({"normal": ids}, 0.5, count))
    return stale, [task.payload for task in found]


def test_all_that_a_consumer_holds_is_acknowledged_at_once_and_nothing_of_others(
    bus: agentbus.Bus, project: str
) -> None:
    mine, other, stats = consumer(bus), consumer(bus, "other"), Keys(project).stats("mail")
    ids = [task.entry_id for task in taken(bus, mine, 3)]
    (its,) = taken(bus, other, 1)
    bus.queue("mail").publish_many(["next", "last"])

    assert turned_over(bus, mine, ids, 1) == ([], ["next"])

    assert [holder for _, holder in pending(bus, project)] == [b"other", b"me"]
    assert ask(bus, "HMGET", stats, "processed", "busy_ms") == [b"3", b"500"]
    # The server has the script now. Before, it read before it acknowledged.
    assert turned_over(bus, other, [its.entry_id]) == ([], ["last"])
    assert [holder for _, holder in pending(bus, project)] == [b"me", b"other"]
    assert other.accompanied > 0


def test_what_another_took_over_is_not_acknowledged_with_all_that_a_consumer_held(
    bus: agentbus.Bus, project: str
) -> None:
    mine = consumer(bus)
    ids = [task.entry_id for task in taken(bus, mine, 4)]
    ask(bus, "XCLAIM", Keys(project).queue("mail"), "default", "thief", 0, ids[2])

    assert turned_over(bus, mine, ids) == ([ids[2]], [])

    assert pending(bus, project) == [(ids[2], b"thief")]


def test_what_a_consumer_has_not_done_is_not_acknowledged_with_all_that_it_has(
    bus: agentbus.Bus, project: str
) -> None:
    mine = consumer(bus)
    ids = [task.entry_id for task in taken(bus, mine, 4)]

    assert turned_over(bus, mine, ids[1:]) == ([], [])

    assert pending(bus, project) == [(ids[0], b"me")]


def test_a_late_copy_of_an_acknowledgement_of_all_leaves_as_many_later_tasks_alone(
    bus: agentbus.Bus, project: str
) -> None:
    # given a consumer that has acknowledged all it held, and has taken as many tasks since then
    mine = consumer(bus)
    ids = [task.entry_id for task in taken(bus, mine, 3)]
    op = mine.turn_all_done({"normal": ids}, 0.0, 3)
    first = next(op).first
    assert isinstance(first, Script)
    assert do(bus, one_step(first)) == [1, 1]
    later = [task.entry_id for task in taken(bus, mine, 3)]

    # when a copy of the request arrives, with its token and after that was overwritten
    assert do(bus, one_step(first)) == [1, 1]
    ask(bus, "DEL", first.keys[1])
    assert do(bus, one_step(first)) == [0, 1]

    # then nothing of the later ones is lost
    assert pending(bus, project) == [(one, b"me") for one in later]


def test_tasks_with_dependents_are_not_acknowledged_without_them(bus: agentbus.Bus) -> None:
    mine, queue = consumer(bus), bus.queue("mail")
    first = queue.publish("first")
    queue.publish("second", after=[first])
    ids = [task.entry_id for task in fetched(bus, mine, 10)]

    assert turned_over(bus, mine, ids) == ([], [])

    assert [task.payload for task in fetched(bus, mine, 10)] == ["second"]


def test_a_sign_of_life_for_some_tasks_reaches_them_past_others_that_are_held(
    bus: agentbus.Bus,
) -> None:
    mine = consumer(bus)
    ids = [task.entry_id for task in taken(bus, mine, 6)]

    assert do(bus, mine.heartbeat("normal", [ids[0], ids[5]])) == []
    assert do(bus, mine.heartbeat("normal", [ids[0], b"1-1", ids[5]])) == [b"1-1"]


def test_a_sign_of_life_does_not_hide_that_a_task_was_trimmed_away(
    bus: agentbus.Bus, project: str
) -> None:
    # given tasks that were taken long ago, of which another program trims all but the last away
    mine, keys = consumer(bus), Keys(project)
    stream, ids = keys.queue("mail"), [task.entry_id for task in taken(bus, mine, 3)]
    ask(bus, "XCLAIM", stream, "default", "me", 0, *ids, "IDLE", 60_000, "JUSTID")
    ask(bus, "XTRIM", stream, "MAXLEN", 1)

    # when their consumer says that it works on them, and another one looks for what was abandoned
    assert do(bus, mine.heartbeat("normal", ids)) == []
    _, found, lost = do(bus, consumer(bus, "heir").reclaim("normal", 30.0, "-", 10))

    # then the one that is there is still its own, and of each of the others there is a letter
    assert (found, lost) == (0, 2)
    assert pending(bus, project) == [(ids[2], b"me")]
    letters = bus.queue("mail").dead_letters()
    assert [letter.original_id for letter in letters] == [i.decode() for i in ids[:2]]
    assert ask(bus, "HGET", keys.stats("mail"), "lost") == b"2"


def test_a_worker_that_was_frozen_does_not_take_over_what_it_still_runs(
    bus: agentbus.Bus, project: str
) -> None:
    # given a task that its consumer holds, and has given no sign of life for, for a minute
    mine, stream = consumer(bus), Keys(project).queue("mail")
    (task,) = taken(bus, mine, 1)
    ask(bus, "XCLAIM", stream, "default", "me", 0, task.entry_id, "IDLE", 60_000, "JUSTID")

    # when it looks for what was abandoned, then it finds nothing, and notes no attempt
    assert do(bus, mine.reclaim("normal", 1.0, "-", 10))[1] == 0
    assert ask(bus, "EXISTS", Keys(project).attempts("mail", "default", "normal")) == 0
    # and another consumer does
    heir = consumer(bus, "heir")
    assert do(bus, heir.reclaim("normal", 1.0, "-", 10))[1] == 1
    assert [one.payload for one in do(bus, heir.take_retries("normal", 10))[0]] == [0]


def test_a_retry_that_waits_while_its_group_is_made_anew_is_delivered_and_not_called_lost(
    bus: agentbus.Bus, project: str
) -> None:
    # given a task that waits for its next attempt
    mine, keys = consumer(bus), Keys(project)
    (task,) = taken(bus, mine, 1)
    assert do(bus, mine.retry(task, 0.0))

    # when somebody removes the group, and it is made again
    ask(bus, "XGROUP", "DESTROY", keys.queue("mail"), "default")
    do(bus, mine.prepare())

    # then the task is delivered from the stream, and there is no letter
    assert do(bus, mine.take_retries("normal", 10)) == ([], None, 0, False)
    assert [found.payload for found in fetched(bus, mine, 10)] == [0]
    assert bus.queue("mail").dead_letters() == []
    assert ask(bus, "HGET", keys.stats("mail"), "lost") is None


def test_a_consumer_leaves_only_the_groups_in_which_it_holds_nothing(
    bus: agentbus.Bus, project: str
) -> None:
    # given a consumer that still holds a task of one priority, and is known for another
    mine, keys = consumer(bus), Keys(project)
    queue = bus.queue("mail")
    queue.publish("held")
    queue.publish("done", priority="high")
    done, held = fetched(bus, mine, 2)
    acknowledged(bus, mine, "high", [done.entry_id])

    do(bus, mine.leave())

    assert pending(bus, project) == [(held.entry_id, b"me")]
    assert ask(bus, "XINFO", "CONSUMERS", keys.queue("mail", "high"), "default") == []
    # and where there is no group any longer, there is nothing to leave
    for priority in PRIORITIES:
        ask(bus, "DEL", keys.queue("mail", priority))
    do(bus, mine.leave())


def test_tasks_are_given_back_though_the_stream_of_another_one_was_removed(
    bus: agentbus.Bus, project: str
) -> None:
    mine = consumer(bus)
    queue = bus.queue("mail")
    queue.publish("counted", priority="high")
    queue.publish("other")
    counted, other = fetched(bus, mine, 2)
    counted.attempt, counted.counted = do(bus, mine.begin(counted)), True
    ask(bus, "DEL", Keys(project).queue("mail", "high"))

    assert do(bus, mine.give_back([counted, other])) == 1

    assert pending(bus, project) == [(other.entry_id, b"~aside")]


def test_a_task_that_may_have_killed_its_worker_runs_alone_also_after_it_waited_for_its_key(
    bus: agentbus.Bus,
) -> None:
    # given two tasks of one key that a dead worker held, and others that failed
    queue = bus.queue("mail")
    queue.publish_many([agentbus.Task(number, ordering_key="a") for number in (1, 2)])
    dead, heir = consumer(bus, "dead"), consumer(bus, "heir")
    assert len(fetched(bus, dead, 2)) == 2
    for failed in taken(bus, heir, 3):
        do(bus, heir.retry(failed, 0.0))
    assert do(bus, heir.reclaim("normal", 0.0, "-", 10))[1] == 2
    (first,), *_, alone = do(bus, heir.take_retries("normal", 10))
    assert alone
    (second,), *_, alone = do(bus, heir.take_retries("normal", 10))
    assert alone
    assert do(bus, heir.start_ordered([first])) == [1]
    assert do(bus, heir.start_ordered([second])) == [0]

    # when the first is done
    assert do(bus, heir.begin(first)) == 2
    assert do(bus, heir.finish(first, 0.0))
    # and the heir must not take another such task yet
    others, *_, alone = do(bus, heir.take_retries("normal", 10, suspects=False))
    assert (sorted(one.payload for one in others), alone) == ([0, 1, 2], False)

    # then the second runs alone, as its second attempt
    (second,), *_, alone = do(bus, heir.take_retries("normal", 10))
    assert (second.payload, alone) == (2, True)
    assert do(bus, heir.start_ordered([second])) == [1]
    assert do(bus, heir.begin(second)) == 2


# -- the visibility of the holder --


def holder(bus: agentbus.Bus, name: str, visibility: float) -> QueueConsumer:
    made = QueueConsumer(bus.scope, "mail", "default", name, visibility=visibility)
    bus._run("work", made.prepare())
    return made


def test_a_task_is_held_for_the_visibility_of_its_holder_not_for_that_of_others(
    bus: agentbus.Bus,
) -> None:
    slow, quick = holder(bus, "slow", 60.0), holder(bus, "quick", 0.001)
    taken(bus, slow, 1)

    assert do(bus, quick.reclaim("normal", 0.0, "-", 10)) == ("", 0, 0)


def test_a_task_is_reclaimed_after_a_short_visibility_by_those_with_a_longer_one(
    bus: agentbus.Bus,
) -> None:
    slow, quick = holder(bus, "slow", 60.0), holder(bus, "quick", 0.001)
    taken(bus, quick, 1)

    while do(bus, slow.reclaim("normal", 60.0, "-", 10)) != ("", 1, 0):
        pass


def test_pages_of_tasks_that_are_held_for_long_hide_no_lost_task(bus: agentbus.Bus) -> None:
    slow, quick = holder(bus, "slow", 60.0), holder(bus, "quick", 0.001)
    taken(bus, slow, 4)
    taken(bus, quick, 1)
    start, number = "-", 0

    while not number:
        start, number, _ = do(bus, slow.reclaim("normal", 60.0, start or "-", 2))

    assert number == 1


def test_a_fetched_task_is_held_for_the_longest_visibility_that_was_asked_for(
    bus: agentbus.Bus,
) -> None:
    queue, quick = bus.queue("mail"), holder(bus, "quick", 0.001)
    queue.publish_many(range(2))
    queue.fetch(visibility=60.0)
    queue.fetch(visibility=0.001)

    assert do(bus, quick.reclaim("normal", 0.0, "-", 10)) == ("", 0, 0)


def test_a_worker_leaves_the_tasks_of_one_with_a_longer_visibility_to_it(bus: agentbus.Bus) -> None:
    queue, release, runs = bus.queue("mail"), threading.Event(), []
    queue.publish("slow")
    began = threading.Event()

    def slowly(_: agentbus.Delivery) -> None:
        runs.append("slow")
        began.set()
        release.wait(60)

    patient = bus.subscribe("mail", slowly, visibility=60.0, count=1)
    thread = threading.Thread(target=patient.run)
    thread.start()
    began.wait(60)

    # By the end of the drain the other worker has looked for lost tasks many times.
    def quickly(delivery: agentbus.Delivery) -> None:
        runs.append(delivery.payload)
        if delivery.payload == 19:
            release.set()

    queue.publish_many(range(20))
    bus.subscribe("mail", quickly, visibility=0.01, drain=True).run()
    thread.join()

    assert runs == ["slow", *range(20)]
