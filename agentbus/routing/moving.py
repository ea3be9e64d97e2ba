"""Moves tasks from the queue where they come in to the queues of those who are to do them."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.coordination import speak
from agentbus.core import envelope
from agentbus.core.errors import AgentBusError
from agentbus.core.stream import text
from agentbus.queues.ids import PRIORITIES, suffix
from agentbus.queues.retry import Bury
from agentbus.queues.settle import ASIDE
from agentbus.routing import guard
from agentbus.store.steps import Batch, Script, ServerReply, one_step
from agentbus.workers.executors import TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import Consumption
    from agentbus.queues.delivery import AnyDelivery
    from agentbus.routing.rules import Choice, Rules
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Milliseconds after which a task is looked at again whose agents have no room.
_PAUSE = 1_000
# Who works for agents' queues, unless told otherwise.
_GROUP = "default"
# What the script says became of a task; -2 and -3 are the two reasons for which one waits.
_MOVED, _STALE, _DUPLICATE = 1, 0, -1
_CIRCLE, _HUGE, _FOREIGN_KEY = -4, -5, -6
_WHY = {
    _HUGE: "it has too many fields to be moved",
    _FOREIGN_KEY: "another program's key stands where the queue of its agent would be",
}
_TOPIC = "coordination"
# The fields of a payload that say more than where a task goes.
_SAYING = frozenset({"work_item_id", "priority", "source", envelope.TRAIL})


class _Sheet:
    """One call of the script while it is written: places and further keys by their numbers."""

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
    """Return the envelope and the trail of a task that goes to an agent, empty where they are new."""
    if not meta and not trail:
        return "", ""
    way = [*map(list, trail), [agent, now]]
    kept = {name: value for name, value in meta.items() if name != "id"}
    return orjson.dumps({**kept, "trail": way}), orjson.dumps(way)


class Moving:
    """Moves tasks in place of running a handler for them; what cannot be moved is buried, or waits.

    `counts` says what became of tasks: `moved`, `duplicates`, `waiting` (each time that one was put aside),
    `stopped` (circles), `buried` (for another reason).
    """

    def __init__(
        self,
        scope: Scope,
        ask: Callable[[Op[Any]], Any],
        task: Consumption,
        rules: Callable[[], Rules],
        bound_of: Callable[[str], int],
        aside: Callable[[str, float], None],
        refused: Callable[[str, str, str], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        # What ended a handler and is no failure of its tasks; there is no handler here.
        self.interrupted: BaseException | None = None
        self._scope = scope
        self._ask = ask
        self._task = task
        self._rules = rules
        self._bound_of = bound_of
        self._aside = aside
        self._refused = refused
        self._known: Rules | None = None
        self._limited = False
        self._turns: Counter[tuple[str, ...]] = Counter()

    def __call__(
        self, tasks: Sequence[Taken], wrap: Callable[[Taken], AnyDelivery]
    ) -> list[TaskOutcome | Taken]:
        """Move tasks, and return what became of each; nobody is handed a delivery."""
        del wrap
        found: list[TaskOutcome | Taken] = []
        for priority in PRIORITIES:
            some = [task for task in tasks if task.priority == priority]
            if some:
                found += self._moved(some, priority)
        return found

    def close(self) -> None:
        """Nothing is open."""

    def _moved(self, tasks: Sequence[Taken], priority: str) -> list[TaskOutcome | Taken]:
        rules = self._rules()
        sheet = _Sheet(self._scope, rules, self._bound_of, round(self._scope.now() * 1000))
        outcomes: list[TaskOutcome | Taken] = []
        sent: list[tuple[Taken, TaskOutcome]] = []
        choices = [None if task.error is not None else rules.route(task.payload) for task in tasks]
        backlogs = self._backlogs(rules, choices)
        for task, choice in zip(tasks, choices, strict=True):
            outcome = TaskOutcome(task)
            outcomes.append(outcome)
            if choice is None:
                outcome.failed(self._buried(task, task.error or "it is malformed"))
                continue
            why = self._write(sheet, task, choice, backlogs)
            if why is None:
                sent.append((task, outcome))
            else:
                outcome.failed(why)
        if not sent:
            return outcomes
        keys, task_keys = self._scope.keys, self._task
        step = Script(
            "route",
            (
                *(task_keys.streams[priority], task_keys.attempts(priority)),
                *(task_keys.retries(priority), keys.triggers, keys.queues, task_keys.stats),
                *(*sheet.keys, *sheet.named),
            ),
            (
                *(task_keys.group, task_keys.consumer, ASIDE, _PAUSE),
                *(round(rules.window * 1000), round(rules.dedup)),
                *(suffix(task_keys.queue, priority), len(sheet.places) // 3),
                *(*sheet.places, *sheet.tasks),
            ),
            writes=True,
        )
        soonest, *codes = self._ask(one_step(step))
        if soonest:
            self._aside(priority, int(soonest) / 1000)
        for (task, outcome), code in zip(sent, codes, strict=True):
            self._noted(task, outcome, int(code))
        return outcomes

    def _noted(self, task: Taken, outcome: TaskOutcome, code: int) -> None:
        """Say what became of a task that the script was asked to move."""
        if code in _WHY:
            outcome.failed(self._buried(task, _WHY[code]))
        elif code == _CIRCLE:
            outcome.failed(self._stopped(task, "its agents trigger each other in a circle"))
        else:
            outcome.settled = True
            outcome.acked = code >= _MOVED or code == _DUPLICATE
            if outcome.acked and task.ordered:
                self._ask(self._task.wake(task))
            if code >= _MOVED:
                self.counts["moved"] += 1
            elif code == _DUPLICATE:
                self.counts["duplicates"] += 1
            elif code != _STALE:
                self.counts["waiting"] += 1

    def _write(
        self, sheet: _Sheet, task: Taken, choice: Choice, backlogs: dict[str, float]
    ) -> Bury | None:
        """Write what the script needs to move a task; or return why it is not to be moved."""
        payload, rules, agents = task.payload, sheet.rules, choice.agents
        if not agents:
            return self._buried(task, choice.reason)
        named = payload if type(payload) is dict else {}
        if (
            not task.meta
            and len(agents) == 1
            and not task.redelivered
            and self._plain(named, rules)
        ):
            sheet.tasks += (task.entry_id, sheet.place(agents[0], task.priority))
            return None
        try:
            trail = guard.trail_of(task.meta, payload)
        except ValueError as error:
            return self._stopped(task, str(error))
        if len(agents) > 1:
            agents = self._in_turn(choice, backlogs)
        if trail:
            why = [
                guard.circle(trail, agent, depth=rules.depth, window=rules.window, now=sheet.now)
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
        seen = 0
        if rules.dedup and isinstance(work, str) and work:
            seen = sheet.key(sheet.scope.keys.seen(self._task.queue, work))
        sheet.tasks += (
            *(task.entry_id, 0, self._task.id_of(task), max(0, task.attempt - 1), seen),
            task.meta["ordering_key"] if task.ordered else "",
            *(source, int(bool(source) and not trail), len(agents)),
        )
        for agent in agents:
            limits = self._limits(sheet, agent, choice.work_type)
            words = _words(task.meta, trail, agent, sheet.now)
            sheet.tasks += (sheet.place(agent, priority), *words, len(limits) // 3, *limits)
        return None

    def _plain(self, named: dict[str, Any], rules: Rules) -> bool:
        """Tell whether there is nothing to say of a task but where it goes, as of most."""
        return not (self._limiting(rules) or not _SAYING.isdisjoint(named))

    def _limiting(self, rules: Rules) -> bool:
        if rules is not self._known:
            self._known = rules
            limited = any(agent.limit is not None for agent in rules.agents.values())
            self._limited = bool(rules.limits) or limited
        return self._limited

    def _limits(self, sheet: _Sheet, agent: str, work_type: str | None) -> tuple[int, ...]:
        rules, keys = sheet.rules, sheet.scope.keys
        found: tuple[int, ...] = ()
        for kind, name, limit in (
            ("agent", agent, rules.agents[agent].limit),
            ("type", work_type or "", rules.limits.get(work_type) if work_type else None),
        ):
            if limit is not None:
                number = sheet.key(keys.rate(kind, name))
                found += (number, limit.count, round(limit.seconds * 1000))
        return found

    def _in_turn(self, choice: Choice, backlogs: dict[str, float]) -> tuple[str, ...]:
        """Return several agents in the order in which they are asked to take a task."""
        agents = choice.agents
        if choice.by == "backlog":
            found = tuple(sorted(agents, key=lambda agent: backlogs[agent]))
            backlogs[found[0]] += 1
            return found
        turn = self._turns[agents] % len(agents)
        self._turns[agents] = turn + 1
        return agents[turn:] + agents[:turn]

    def _backlogs(self, rules: Rules, choices: Sequence[Choice | None]) -> dict[str, float]:
        """Return how many tasks each agent has still to do that is one of several."""
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
        self.counts["buried"] += 1
        self._refused("buried", self._task.id_of(task), why)
        return Bury(why)

    def _stopped(self, task: Taken, why: str) -> Bury:
        self.counts["stopped"] += 1
        task_id = self._task.id_of(task)
        self._refused("stopped", task_id, why)
        with contextlib.suppress(AgentBusError):
            # It is stopped whether it can be said or not.
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
    """Return by agent how many tasks of its queue are pending, or were never delivered.

    As `figures.lags` counts them, which looks at more and takes the server five times as long: this is
    asked for each batch.
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
