"""Moves tasks from the router's queue to the queues of agents, in one script call per batch."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.coordination import speak
from agentbus.core import envelope
from agentbus.core.errors import AgentBusError
from agentbus.core.stream import text
from agentbus.queues.ids import ASIDE, PRIORITIES, suffix
from agentbus.queues.retry import Bury
from agentbus.routing import guard
from agentbus.store.steps import Batch, Script, ServerReply, one_step
from agentbus.workers.batch import TaskOutcome

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import QueueConsumer
    from agentbus.queues.delivery import AnyDelivery
    from agentbus.routing.rules import Choice, Rules
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.batch import TaskBatch

# Milliseconds after which a task is retried if the queues of its agents are full.
_PAUSE = 1_000
# Consumer group whose backlog counts.
_GROUP = "default"
# Result codes of the script; with the code -2, the task waits.
_MOVED, _STALE, _DUPLICATE = 1, 0, -1
_CIRCLE, _HUGE, _FOREIGN_KEY = -4, -5, -6
_WHY = {
    _HUGE: "it has too many fields to be moved",
    _FOREIGN_KEY: "the key of its agent's queue is used by another program",
}
_TOPIC = "coordination"
# Payload fields that affect more than the choice of the target.
_ROUTED_FIELDS = frozenset({"work_item_id", "priority", "source", envelope.TRAIL})


class _ScriptCall:
    """The arguments of one script call: targets and further keys by their numbers."""

    def __init__(
        self, scope: Scope, rules: Rules, bound_of: Callable[[str], int], now: int
    ) -> None:
        self.scope = scope
        self.rules = rules
        self.now = now
        self.places: list[str | int] = []
        self.keys: list[str] = []
        self.named: list[str] = []
        self.tasks: list[bytes | str | int] = []
        self._bound_of = bound_of
        self._places: dict[tuple[str, str], int] = {}
        self._named: dict[str, int] = {}

    def place(self, agent: str, priority: str) -> int:
        """Return the number of an agent's queue."""
        found = self._places.get((agent, priority))
        if found is None:
            queue, keys = self.rules.agents[agent].queue, self.scope.keys
            self._places[agent, priority] = found = len(self._places) + 1
            self.places += (queue, self._bound_of(queue), agent)
            self.keys += (
                *(keys.queue(queue, priority), keys.order(queue, priority)),
                *(keys.stats(queue), keys.readers(queue, priority)),
            )
        return found

    def key(self, name: str) -> int:
        """Return the number of a further key."""
        found = self._named.get(name)
        if found is None:
            self._named[name] = found = len(self._named) + 1
            self.named.append(name)
        return found


def _words(
    meta: dict[str, Any], trail: guard.Trail, agent: str, now: int
) -> tuple[bytes | str, bytes | str]:
    """Return the envelope and the trail of a task for an agent, empty if it has neither."""
    if not meta and not trail:
        return "", ""
    way = [*map(list, trail), [agent, now]]
    kept = {name: value for name, value in meta.items() if name != "id"}
    return orjson.dumps({**kept, "trail": way}), orjson.dumps(way)


class TaskMover:
    """An executor that moves tasks; tasks that cannot be moved wait, or become dead letters.

    `counts` counts tasks: `moved`, `duplicates`, `waiting` (each delay counts), `stopped` (by the loop
    guard), `dead` (dead letters for another reason).
    """

    def __init__(
        self,
        ask: Callable[[Op[Any]], Any],
        task: QueueConsumer,
        rules: Callable[[], Rules],
        bound_of: Callable[[str], int],
        refused: Callable[[str, str, str], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        # The executor protocol requires this attribute; without a handler there is never an
        # interrupt.
        self.interrupted: BaseException | None = None
        # A task with an ordering key must be moved after its predecessor.
        self.chains = False
        self._scope = task.scope
        self._ask = ask
        self._task = task
        self._rules = rules
        self._bound_of = bound_of
        self._refused = refused
        self._known: Rules | None = None
        self._limited = False
        self._turns: Counter[tuple[str, ...]] = Counter()

    def __call__(self, batch: TaskBatch, wrap: Callable[[Taken], AnyDelivery]) -> None:
        """Move tasks; no delivery is created."""
        del wrap
        tasks = batch.whole()
        for priority in PRIORITIES:
            some = [task for task in tasks if task.priority == priority]
            if some:
                batch.outcomes.extend(self._moved(some, priority))

    def close(self) -> None:
        """Do nothing."""

    def _moved(self, tasks: Sequence[Taken], priority: str) -> list[TaskOutcome | Taken]:
        rules = self._rules()
        call = _ScriptCall(
            self._scope, rules, self._bound_of, round(self._scope.server_now() * 1000)
        )
        outcomes: list[TaskOutcome | Taken] = []
        sent: list[tuple[Taken, TaskOutcome]] = []
        choices = [None if task.error is not None else rules.route(task.payload) for task in tasks]
        backlogs = self._backlogs(rules, choices)
        for task, choice in zip(tasks, choices, strict=True):
            outcome = TaskOutcome(task)
            outcomes.append(outcome)
            if choice is None:
                outcome.fail(self._buried(task, task.error or "it is malformed"))
                continue
            why = self._write(call, task, choice, backlogs)
            if why is None:
                sent.append((task, outcome))
            else:
                outcome.fail(why)
        if not sent:
            return outcomes
        keys, task_keys = self._scope.keys, self._task
        step = Script(
            "route",
            (
                *(task_keys.streams[priority], task_keys.attempts(priority)),
                *(task_keys.retries(priority), keys.triggers, keys.queues, task_keys.stats),
                *(*call.keys, *call.named),
            ),
            (
                *(task_keys.group, task_keys.consumer, ASIDE, _PAUSE),
                *(round(rules.window * 1000), round(rules.dedup)),
                *(suffix(task_keys.queue, priority), len(call.places) // 3),
                *(*call.places, *call.tasks),
            ),
            writes=True,
        )
        soonest, *codes = self._ask(one_step(step))
        if soonest:
            self._task.look_within(priority, int(soonest) / 1000 - self._scope.server_now())
        for (task, outcome), code in zip(sent, codes, strict=True):
            self._record(task, outcome, int(code))
        return outcomes

    def _record(self, task: Taken, outcome: TaskOutcome, code: int) -> None:
        """Set a task's outcome from the script's result code."""
        if code in _WHY:
            outcome.fail(self._buried(task, _WHY[code]))
        elif code == _CIRCLE:
            outcome.fail(self._stopped(task, "its agents trigger each other in a circle"))
        else:
            outcome.settled = True
            outcome.acked = code >= _MOVED or code == _DUPLICATE
            if outcome.acked and task.ordered:
                self._ask(self._task.wake_ordered([task]))
            if code >= _MOVED:
                self.counts["moved"] += 1
            elif code == _DUPLICATE:
                self.counts["duplicates"] += 1
            elif code != _STALE:
                self.counts["waiting"] += 1

    def _write(
        self, call: _ScriptCall, task: Taken, choice: Choice, backlogs: dict[str, float]
    ) -> Bury | None:
        """Add the arguments for a task, or return the reason not to move it."""
        payload, rules, agents = task.payload, call.rules, choice.agents
        inbox = task.meta.pop(envelope.ROUTED_INBOX, None) if task.meta else None
        if not agents:
            return self._buried(task, choice.reason)
        named = payload if type(payload) is dict else {}
        if (
            not task.meta
            and inbox is None
            and len(agents) == 1
            and not task.redelivered
            and self._plain(named, rules)
        ):
            call.tasks += (task.entry_id, call.place(agents[0], task.priority))
            return None
        try:
            trail = guard.trail_of(task.meta, payload)
        except ValueError as error:
            return self._stopped(task, str(error))
        if len(agents) > 1:
            agents = self._ordered(choice, backlogs)
        if trail:
            why = [
                guard.circle(trail, agent, depth=rules.depth, window=rules.window, now=call.now)
                for agent in agents
            ]
            agents = tuple(agent for agent, no in zip(agents, why, strict=True) if no is None)
            if not agents:
                return self._stopped(task, why[0] or "")
        priority, work = task.priority, named.get("work_item_id")
        if priority == "normal" and (wanted := named.get("priority")) in PRIORITIES:
            priority = wanted
        source = trail[-1][0] if trail else task.meta.get("source") or named.get("source")
        source = source if rules.window and source in rules.agents else ""
        keys, queue, seen, seen_inbox = call.scope.keys, self._task.queue, 0, 0
        if rules.dedup and isinstance(work, str) and work:
            seen = call.key(keys.seen(queue, work))
        if rules.dedup and inbox is not None:
            seen_inbox = call.key(keys.seen_inbox(queue, inbox))
        call.tasks += (
            *(task.entry_id, 0, self._task.id_of(task), max(0, task.attempt - 1)),
            *(seen, seen_inbox),
            task.meta["ordering_key"] if task.ordered else "",
            *(source, int(bool(source) and not trail), len(agents)),
        )
        for agent in agents:
            limits = self._limits(call, agent, choice.work_type)
            words = _words(task.meta, trail, agent, call.now)
            call.tasks += (call.place(agent, priority), *words, len(limits) // 3, *limits)
        return None

    def _plain(self, named: dict[str, Any], rules: Rules) -> bool:
        """Return whether a task needs only its target, as most do."""
        return not (self._limiting(rules) or not _ROUTED_FIELDS.isdisjoint(named))

    def _limiting(self, rules: Rules) -> bool:
        if rules is not self._known:
            self._known = rules
            limited = any(agent.limit is not None for agent in rules.agents.values())
            self._limited = bool(rules.limits) or limited
        return self._limited

    def _limits(self, call: _ScriptCall, agent: str, work_type: str | None) -> tuple[int, ...]:
        rules, keys = call.rules, call.scope.keys
        found: tuple[int, ...] = ()
        for kind, name, limit in (
            ("agent", agent, rules.agents[agent].limit),
            ("type", work_type or "", rules.limits.get(work_type) if work_type else None),
        ):
            if limit is not None:
                number = call.key(keys.rate(kind, name))
                found += (number, limit.count, round(limit.seconds * 1000))
        return found

    def _ordered(self, choice: Choice, backlogs: dict[str, float]) -> tuple[str, ...]:
        """Return the agents in the order in which the script will try them."""
        agents = choice.agents
        if choice.by == "backlog":
            found = tuple(sorted(agents, key=lambda agent: backlogs[agent]))
            backlogs[found[0]] += 1
            return found
        turn = self._turns[agents] % len(agents)
        self._turns[agents] = turn + 1
        return agents[turn:] + agents[:turn]

    def _backlogs(self, rules: Rules, choices: Sequence[Choice | None]) -> dict[str, float]:
        """Return the number of unfinished tasks of each agent that shares tasks by backlog."""
        wanted = {
            agent
            for choice in choices
            if choice is not None and len(choice.agents) > 1 and choice.by == "backlog"
            for agent in choice.agents
        }
        if not wanted:
            return {}
        found: dict[str, float] = self._ask(
            _waiting(self._scope, {agent: rules.agents[agent].queue for agent in wanted})
        )
        return found

    def _buried(self, task: Taken, why: str) -> Bury:
        self.counts["dead"] += 1
        self._refused("dead", self._task.id_of(task), why)
        return Bury(why)

    def _stopped(self, task: Taken, why: str) -> Bury:
        self.counts["stopped"] += 1
        task_id = self._task.id_of(task)
        self._refused("stopped", task_id, why)
        with contextlib.suppress(AgentBusError):
            # The task is stopped even if the notice cannot be sent.
            self._ask(
                speak.append(
                    self._scope,
                    f"stopped the task {task_id}: {why}",
                    _TOPIC,
                    *("event", "stopped", "task", task_id),
                )
            )
        return Bury(f"the loop guard stopped it: {why}")


def _waiting(scope: Scope, queues: dict[str, str]) -> Op[dict[str, float]]:
    """Return for each agent the number of tasks in its queue that are pending or undelivered.

    This is requested for each batch; `stats.lags` is more exact, but costs the server five times as much.
    """
    keys = scope.keys
    asked: list[tuple[str, ...]] = [
        command
        for queue in queues.values()
        for priority in PRIORITIES
        for command in (
            ("XINFO", "GROUPS", keys.queue(queue, priority)),
            ("XLEN", keys.queue(queue, priority)),
        )
    ]
    replies = yield Batch(asked)
    found, at = {}, 0
    for agent in queues:
        number = 0
        for _ in PRIORITIES:
            groups, length = replies[at : at + 2]
            at += 2
            number += _left(groups, 0 if isinstance(length, ServerReply) else int(length))
        found[agent] = float(number)
    return found


def _left(groups: Any, length: int) -> int:
    if isinstance(groups, ServerReply):
        return length
    for flat in groups:
        info = dict(zip(map(text, flat[::2]), flat[1::2], strict=True))
        if text(info["name"]) == _GROUP and info.get("lag") is not None:
            return int(info["lag"]) + int(info["pending"])
    return length
