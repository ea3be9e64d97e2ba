"""Queues against a model: nothing accepted is lost, and each group is given everything."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import agentbus
from agentbus import QueueFull
from agentbus.queues import by_hand
from agentbus.queues.ids import ASIDE, BY_HAND, PRIORITIES
from agentbus.workers import fetch
from tests.machines.base import Machine, refused
from tests.machines.tasks import Model, Pending

QUEUE, BOUND, LATER, LONG = "mail", 5, 3600.0, 600.0
priorities = st.sampled_from(PRIORITIES)
groups = st.sampled_from(["default", "audit"])
consumers = st.sampled_from(["ada", "bob"])
# Mostly what was handled last, and now and then what is long over.
numbers = st.sampled_from([0, 0, 1, 1, 2, 3, 5, 20])


class QueueMachine(Machine):
    """Two agents in each of two groups take tasks, for a process or by hand, and forget some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(BOUND)
        self.hands: list[tuple[Any, Pending | None, str, str]] = []
        self.payloads = 0
        self.paused = False

    def queue(self, agent: str = "ada") -> Any:
        return self.bus(agent).queue(QUEUE, bound=BOUND)

    def _next(self) -> int:
        self.payloads += 1
        return self.payloads

    # -- what publishers do --

    @initialize(count=st.integers(1, 4), group=groups, agent=consumers, taken=st.integers(0, 4))
    def some_were_published_and_taken(self, count: int, group: str, agent: str, taken: int) -> None:
        self.publish_many("normal", count)
        if taken:
            self.take(agent, group, taken)

    @rule(priority=priorities, key=st.sampled_from([None, None, "k", "a:b"]), delayed=st.booleans())
    def publish(self, priority: str, key: str | None, delayed: bool) -> None:
        payload = self._next()
        how: dict[str, Any] = {"priority": priority, "key": key}
        how.update({"delay": LATER} if delayed else {})
        if key in self.model.seen:
            assert self.queue().publish(payload, **how) == self.model.seen[key]
        elif not self.model.has_room(priority, 1, delayed=delayed):
            with refused(QueueFull):
                self.queue().publish(payload, **how)
        else:
            task_id = self.queue().publish(payload, **how)
            if delayed:
                self.model.delay(task_id, priority, payload)
            else:
                self.model.append(task_id, priority, payload)
            if key is not None:
                self.model.seen[key] = task_id

    @rule(priority=priorities, count=st.integers(1, 4))
    def publish_many(self, priority: str, count: int) -> None:
        payloads = [self._next() for _ in range(count)]
        if self.model.has_room(priority, count):
            ids = self.queue().publish_many(payloads, priority=priority)
            for task_id, payload in zip(ids, payloads, strict=True):
                self.model.append(task_id, priority, payload)
        else:
            with refused(QueueFull):
                self.queue().publish_many(payloads, priority=priority)

    # -- what consumers do --

    @rule(agent=consumers, group=groups, count=st.integers(1, 5))
    def take(self, agent: str, group: str, count: int) -> None:
        # As if the half minute were over in which a consumer does not look for what others left.
        fetch.here(self.bus(agent).runner).due_at.clear()
        found = self.queue(agent).fetch(group=group, count=count, visibility=LONG)

        wanted = self.model.take(group, agent, count, paused=self.paused)
        self._name_what_fell_due()
        assert [(one.payload, one.attempt, one.priority) for one in found] == [
            (task.payload, attempt, task.priority) for task, attempt in wanted
        ]
        assert [one.id for one in found] == [task.task_id for task, _ in wanted]
        self.hands += [
            (one, self.model.groups[group].pending.get(task), group, agent)
            for one, (task, _) in zip(found, wanted, strict=True)
        ]

    @rule(agent=consumers, group=groups)
    def take_by_hand(self, agent: str, group: str) -> None:
        fetch.here(self.bus(agent).runner).due_at.clear()
        holder = BY_HAND + agent
        wanted = self.model.take(group, holder, 1, paused=self.paused)
        if not wanted:
            with refused(agentbus.NotFound):
                self.bus(agent).take(QUEUE, group=group, visibility=LATER)
            return
        found = self.bus(agent).take(QUEUE, group=group, visibility=LATER)
        self._name_what_fell_due()
        ((task, attempt),) = wanted
        assert (found.id, found.payload, found.attempt) == (task.task_id, task.payload, attempt)
        self.model.hold(group, task, attempt)
        self.hands.append((found, self.model.groups[group].pending[task], group, holder))

    def _streams(self) -> list[Any]:
        return self.ask_all(
            *(("XRANGE", self.keys.queue(QUEUE, priority), "-", "+") for priority in PRIORITIES)
        )

    def _name_what_fell_due(self) -> None:
        # What was delayed got an entry of its own, whose id only the server knows.
        for priority, entries in zip(PRIORITIES, self._streams(), strict=True):
            for task, (entry_id, _) in zip(self.model.kept(priority), entries, strict=True):
                assert task.entry_id in {"", entry_id.decode()}
                task.entry_id = entry_id.decode()

    @precondition(lambda self: self.hands)
    @rule(which=numbers, result=st.sampled_from([None, {"sent": 1}]))
    def ack(self, which: int, result: object) -> None:
        delivery, since, group, agent = self.hands[-1 - which % len(self.hands)]
        ours = self.model.settle(group, agent, delivery.id, since)
        assert delivery.ack(result) == (ours is not None)
        if ours and result is not None:
            assert self.queue().result(delivery.id, group=group) == result

    @precondition(lambda self: self.hands)
    @rule(which=numbers)
    def retry(self, which: int) -> None:
        delivery, since, group, agent = self.hands[-1 - which % len(self.hands)]
        ours = self.model.put_aside(group, agent, delivery.id, delivery.attempt, since)
        assert delivery.retry(after=LATER) == ours

    @precondition(lambda self: self.hands)
    @rule(which=numbers, error=st.sampled_from(["it bounced", "no such address"]))
    def bury(self, which: int, error: str) -> None:
        delivery, since, group, agent = self.hands[-1 - which % len(self.hands)]
        task = self.model.settle(group, agent, delivery.id, since)
        assert delivery.bury(error) == (task is not None)
        if task:
            self.model.bury(group, task, error, delivery.attempt)
            with refused(agentbus.TaskBuried):
                self.queue().result(delivery.id, group=group)

    # -- what time does --

    @rule(agent=consumers, group=groups, next_=consumers, count=st.integers(0, 5))
    def a_consumer_gives_no_sign_of_life(
        self, agent: str, group: str, next_: str, count: int
    ) -> None:
        # Nobody gives one for what was put aside, or is held by hand; that waits for its time nevertheless.
        names = {agent: fetch.here(self.bus(agent).runner).name, ASIDE: ASIDE}
        names |= {BY_HAND + one: BY_HAND + one for one in ("ada", "bob")}
        for task, pending in self.model.pending_of(group):
            if pending.holder in names:
                stream, name = self.keys.queue(QUEUE, task.priority), names[pending.holder]
                self.ask(
                    *("XCLAIM", stream, group, name, 0, task.entry_id),
                    *("IDLE", round(2000 * LONG), "JUSTID"),
                )
                pending.idle = pending.holder == agent
        if count:
            self.take(next_, group, count)

    @precondition(lambda self: self.model.delayed)
    @rule(which=numbers)
    def a_delayed_task_falls_due(self, which: int) -> None:
        task = self.model.delayed[which % len(self.model.delayed)]
        task.due = task.due or self.model.tick()
        self.ask("ZADD", self.keys.delayed(QUEUE), task.due, task.task_id)

    @rule(group=groups, which=numbers, next_=consumers, count=st.integers(0, 5))
    def a_retry_falls_due(self, group: str, which: int, next_: str, count: int) -> None:
        # A suspect has no time to fall due: it is given out next, those with the fewest attempts first.
        aside = [
            (task, one)
            for task, one in self.model.pending_of(group)
            if one.holder == ASIDE and not one.suspect
        ]
        if aside:
            task, pending = aside[which % len(aside)]
            pending.due = pending.due or self.model.tick()
            retries = self.keys.retries(QUEUE, group, task.priority)
            self.ask("ZADD", retries, "XX", pending.due, task.entry_id)
        if count:
            self.take(next_, group, count)

    @rule(group=groups, which=numbers, next_=consumers, count=st.integers(0, 5))
    def a_visibility_ends(self, group: str, which: int, next_: str, count: int) -> None:
        held = [(task, one) for task, one in self.model.pending_of(group) if one.by_hand]
        if held:
            task, pending = held[which % len(held)]
            pending.due = pending.due or self.model.tick()
            retries = self.keys.retries(QUEUE, group, task.priority)
            self.ask("ZADD", retries, "XX", pending.due, task.entry_id)
        if count:
            self.take(next_, group, count)

    @rule(key=st.sampled_from(["k", "a:b"]))
    def the_dedup_window_is_over(self, key: str) -> None:
        if self.model.seen.pop(key, None):
            self.expire(self.keys.seen(QUEUE, key))

    # -- what operators do --

    @rule()
    def pause_or_resume(self) -> None:
        if self.paused:
            assert self.queue("eve").resume() is True
        else:
            self.queue("eve").pause(wait=0)
        self.paused = not self.paused

    @rule(group=groups, which=numbers)
    def replay(self, group: str, which: int) -> None:
        if letters := self.model.letters(group):
            letter = letters[-1 - which % len(letters)]
            task_id = self.queue().replay(letter.id, group=group)
            self._replayed(letter, task_id)

    def _replayed(self, letter: Any, task_id: str) -> None:
        if letter.replayed is None:
            letter.replayed = task_id
            self.model.append(task_id, letter.task.priority, letter.task.payload)
        assert task_id == letter.replayed

    @rule(group=groups, match=st.sampled_from([None, "bounced"]))
    def replay_all(self, group: str, match: str | None) -> None:
        wanted = [
            letter
            for letter in self.model.letters(group)
            if letter.replayed is None and (match is None or match in letter.error)
        ]
        ids = self.queue().replay_all(group=group, match=match)
        for letter, task_id in zip(wanted, ids, strict=True):
            self._replayed(letter, task_id)

    @rule(group=groups, which=st.none() | numbers, match=st.sampled_from([None, "bounced"]))
    def purge(self, group: str, which: int | None, match: str | None) -> None:
        letters = self.model.letters(group)
        named = [letters[-1 - which % len(letters)]] if which is not None and letters else []
        gone = [one for one in named or letters if match is None or match in one.error]
        ids = [one.id for one in named]
        assert self.queue().purge(*ids, group=group, match=match) == len(gone)
        for letter in gone:
            letters.remove(letter)

    @rule(group=groups)
    def deliver_again_what_was_done(self, group: str) -> None:
        if group in self.model.groups:
            wanted = self.model.done(group)
            found = self.queue().replay_from("0-0", group=group)
            assert found.tasks == len(wanted)
            for task in wanted:
                # In their order, and all of them due now.
                due = self.model.tick()
                self.model.groups[group].pending[task] = Pending(ASIDE, due=due)
                self.model.groups[group].attempts[task] = 0
                retries = self.keys.retries(QUEUE, group, task.priority)
                self.ask("ZADD", retries, "XX", due, task.entry_id)

    # -- what always holds --

    @invariant()
    def the_streams_hold_what_the_model_does(self) -> None:
        for priority, entries in zip(PRIORITIES, self._streams(), strict=True):
            assert [entry_id.decode() for entry_id, _ in entries] == [
                task.entry_id for task in self.model.kept(priority)
            ]

    @invariant()
    def each_group_is_as_far_as_the_model(self) -> None:
        found = {one.group: one for one in self.queue().groups()}
        assert set(found) == set(self.model.groups)
        for name, one in found.items():
            pending = [p for _, p in self.model.pending_of(name)]
            aside = sum(p.holder == ASIDE for p in pending)
            assert (one.pending, one.retrying) == (len(pending) - aside, aside)
            assert dict(one.by_priority) == {
                priority: len(self.model.waiting(name, priority)) for priority in PRIORITIES
            }
            assert one.dead == sum(not letter.replayed for letter in self.model.letters(name))

    @invariant()
    def whoever_holds_a_task_in_the_model_holds_it(self) -> None:
        names = {fetch.here(self.bus(agent).runner).name: agent for agent in ("ada", "bob")}
        streams = [self.keys.queue(QUEUE, priority) for priority in PRIORITIES]
        for group in self.model.groups:
            asked = [("XPENDING", stream, group, "-", "+", 1000) for stream in streams]
            found = [
                (one[0].decode(), names.get(one[1].decode(), one[1].decode()))
                for entries in self.ask_all(*asked)
                for one in entries
            ]
            assert found == [
                (task.entry_id, pending.holder) for task, pending in self.model.pending_of(group)
            ]

    @invariant()
    def the_dead_letters_are_the_models(self) -> None:
        for group in self.model.groups:
            wanted = self.model.letters(group)
            # Nobody could tell by the figures, which count them, that they are others.
            found = self.queue().dead_letters(group) if wanted else []
            assert [(o.payload, o.error, o.attempts, o.replayed, o.task_id) for o in found] == [
                (o.task.payload, o.error, o.attempts, o.replayed, o.task.task_id) for o in wanted
            ]
            for mine, theirs in zip(wanted, found, strict=True):
                assert mine.id in {"", theirs.id}
                mine.id = theirs.id

    @invariant()
    def nothing_is_left_of_what_was_settled(self) -> None:
        for name in self.model.groups:
            pending = {task.entry_id for task, _ in self.model.pending_of(name)}
            replayed = [one.id for one in self.model.letters(name) if one.replayed]
            *counted, noted = self.ask_all(
                *(("HKEYS", self.keys.attempts(QUEUE, name, priority)) for priority in PRIORITIES),
                ("HKEYS", self.keys.replayed(QUEUE, name)),
            )
            assert pending >= {one.decode() for ids in counted for one in ids}
            assert sorted(one.decode() for one in noted) == sorted(replayed)

    @invariant()
    def what_is_held_by_hand_is_listed(self) -> None:
        wanted = {
            (task.task_id, group, pending.holder)
            for group in self.model.groups
            for task, pending in self.model.pending_of(group)
            if pending.by_hand
        }
        bus = self.bus("ada")
        held = bus._run("held", by_hand.all_held(bus.scope)) if wanted else []
        assert {(one.id, one.group, BY_HAND + one.agent_id) for one in held} == wanted

    @invariant()
    def what_is_delayed_waits(self) -> None:
        found = self.ask("ZRANGE", self.keys.delayed(QUEUE), 0, -1)
        assert {one.decode() for one in found} == {one.task_id for one in self.model.delayed}
