"""The rules of a router, which choose the agents of a task and explain the choice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core.validate import shown
from agentbus.routing.glob import fold

if TYPE_CHECKING:
    from agentbus.routing.glob import Glob

    # Pairs of a field and a test of its case-folded text, and the choice if all tests pass.
    Pattern = tuple[tuple[tuple[str, Callable[[str], bool]], ...], "Choice"]

BACKLOG = "backlog"
ROUND_ROBIN = "round_robin"
# Names of the task fields that routing reads.
TEXT_FIELD = "task"
AGENT_FIELD = "agent_id"
TYPE_FIELDS = ("type", "work_type")
WORK_ITEM = "work_item"


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate limit: at most `count` tasks within `seconds`."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that tasks are routed to."""

    name: str
    queue: str
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """Agents of which one gets the task: `backlog` selects the shortest queue, `round_robin` the next."""

    agents: tuple[str, ...]
    by: str = BACKLOG


@dataclass(frozen=True, slots=True)
class Condition:
    """A pattern for a field of a task; dots in its name select nested fields."""

    field: str
    glob: Glob

    def __str__(self) -> str:
        return f"{self.field} like {shown(self.glob.pattern)}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its number (from 1) and line, its target, and its work types or conditions."""

    number: int
    line: int
    target: RouteTarget
    work_types: tuple[str, ...] = ()
    match: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        return f"rule {self.number} (line {self.line})"


@dataclass(frozen=True, slots=True)
class Choice:
    """The target of one task: one of `agents`, selected `by`; without agents the task becomes dead.

    `how` is agent_id, work_type, match, default or none; `rule` is the matching rule, `work_type` the
    task's work type, `asked` the agent that the task names, `reason` the explanation for people.
    """

    agents: tuple[str, ...]
    by: str = BACKLOG
    how: str = "none"
    rule: Rule | None = None
    work_type: str | None = None
    asked: str | None = None

    @property
    def reason(self) -> str:
        """The explanation, composed on access because most tasks need none."""
        if self.asked is not None:
            whose = "is an agent of the rules" if self.agents else "names no agent of the rules"
            return f"agent_id {shown(self.asked)} {whose}"
        if self.rule is None:
            return (
                f"no rule matches{': the default' if self.agents else ', and there is no default'}"
            )
        if self.how == "work_type":
            return f"work_type {shown(self.work_type or '')} matches {self.rule}"
        return f"{' and '.join(map(str, self.rule.match))} matches {self.rule}"

    def _of(self, work_type: str | None) -> Choice:
        if work_type is None:
            return self
        return Choice(self.agents, self.by, self.how, self.rule, work_type, self.asked)


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    """One step of an explanation: `how` as in `Choice`, whether the step matched, and why."""

    how: str
    rule: Rule | None
    matched: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The choice for a task, and the steps that led to it."""

    choice: Choice
    steps: tuple[ExplanationStep, ...]


class Rules:
    """The rules of one file, immutable: `route` chooses the target of a task, `explain` also says why.

    `agents` maps names to agents, `limits` work types to limits; `window` and `dedup` are in seconds;
    `digest` is the digest of the file's text, used to detect changes.
    """

    __slots__ = (
        *("path", "incoming", "team", "agents", "rules", "default", "limits", "depth", "window"),
        *("dedup", "warnings", "digest", "_asked", "_by_type", "_patterns", "_rest"),
    )

    def __init__(
        self,
        *,
        agents: Mapping[str, Agent],
        rules: Sequence[Rule] = (),
        default: RouteTarget | None = None,
        path: str = "",
        incoming: str = "incoming",
        team: str | None = None,
        limits: Mapping[str, Limit] | None = None,
        depth: int = 5,
        window: float = 1800.0,
        dedup: float = 300.0,
        warnings: Sequence[str] = (),
        digest: str = "",
    ) -> None:
        self.path, self.incoming, self.team = path, incoming, team
        self.agents, self.rules, self.default = dict(agents), tuple(rules), default
        self.limits, self.depth, self.window = dict(limits or {}), depth, window
        self.dedup, self.warnings, self.digest = dedup, tuple(warnings), digest
        # Create all choices in advance, so that each task costs only a dict lookup.
        self._asked = {name: Choice((name,), how="agent_id", asked=name) for name in self.agents}
        self._by_type: dict[str | None, Choice] = {}
        for rule in self.rules:
            for kind in rule.work_types:
                made = Choice(rule.target.agents, rule.target.by, "work_type", rule, kind)
                self._by_type.setdefault(kind, made)
        self._patterns: list[Pattern] = [
            (
                tuple((one.field, one.glob.matches) for one in rule.match),
                Choice(rule.target.agents, rule.target.by, "match", rule),
            )
            for rule in self.rules
            if rule.match
        ]
        self._rest = Choice(default.agents, default.by, "default") if default else Choice(())

    def route(self, task: object) -> Choice:
        """Return the choice for a task, given its payload.

        An `agent_id` alone decides, even if it names no known agent. Next comes the work type (the field
        `type`, or else `work_type`), then the first matching pattern, then the default.
        """
        kind: str | None = None
        if isinstance(task, dict):
            asked = task.get(AGENT_FIELD)
            if asked is not None and asked != "":
                return self._named(task, asked)
            kind = work_type(task)
            choice = self._by_type.get(kind)
            if choice is not None:
                return choice
        if self._patterns:
            choice = _TaskFields(task).first(self._patterns)
            if choice is not None:
                return choice._of(kind)
        return self._rest._of(kind)

    def explain(self, task: object) -> Explanation:
        """Return the choice for a task, and why each earlier rule matched or not."""
        choice = self.route(task)
        steps: list[ExplanationStep] = []
        for step in self._steps(task, choice):
            steps.append(step)
            if step.matched:
                break
        return Explanation(choice, tuple(steps))

    def _named(self, task: dict[str, Any], asked: object) -> Choice:
        name = text_of(asked)
        choice = self._asked.get(name) if name is not None else None
        if choice is None:
            # Do not guess another agent: the task was meant for this one.
            choice = Choice((), asked=repr(asked)[:60] if name is None else name)
        return choice._of(work_type(task))

    def _steps(self, task: object, choice: Choice) -> Iterator[ExplanationStep]:
        """Yield the steps of `route` in order."""
        if choice.asked is not None:
            yield ExplanationStep("agent_id", None, True, choice.reason)
            return
        yield ExplanationStep("agent_id", None, False, "the task has no agent_id")
        kind = choice.work_type
        for rule in self.rules:
            if rule.work_types:
                matched = kind in rule.work_types
                yield ExplanationStep("work_type", rule, matched, _about_type(rule, kind, matched))
        seen = _TaskFields(task)
        for pattern in self._patterns:
            matched = seen.first([pattern]) is not None
            made = pattern[1]
            yield ExplanationStep(
                "match", made.rule, matched, made.reason if matched else seen.why_not(made.rule)
            )
        yield ExplanationStep(choice.how, None, bool(choice.agents), choice.reason)


def work_type(task: dict[str, Any]) -> str | None:
    """Return a task's work type: the first non-empty one of its `type` and `work_type`."""
    found = task.get("type")
    if found.__class__ is str and found:
        return found
    for field in TYPE_FIELDS:
        text = text_of(task.get(field))
        if text:
            return text
    return None


def text_of(value: object) -> str | None:
    """Return a scalar as text, with numbers and booleans as in JSON; None for other values."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        try:
            return repr(value)
        except ValueError:
            # Python refuses to convert an integer with thousands of digits.
            return None
    return None


class _TaskFields:
    """The fields of one task for patterns; each is looked up and folded once."""

    __slots__ = ("_folded", "_task", "_work_item")

    def __init__(self, task: object) -> None:
        self._task = task
        self._folded: dict[str, str | None] = {}
        self._work_item: object = None

    def first(self, patterns: list[Pattern]) -> Choice | None:
        """Return the choice of the first pattern whose tests all pass, or None."""
        folded = self._folded
        for tests, choice in patterns:
            for field, matches in tests:
                if field not in folded:
                    found = self.text(field)
                    folded[field] = None if found is None else fold(found)
                text = folded[field]
                if text is None or not matches(text):
                    break
            else:
                return choice
        return None

    def text(self, field: str) -> str | None:
        """Return a field's text; None if it has none."""
        task = self._task
        if not isinstance(task, dict):
            return task if field == TEXT_FIELD and isinstance(task, str) else None
        first, *rest = field.split(".")
        found = task.get(first)
        if rest and first == WORK_ITEM and isinstance(found, str):
            found = self._opened(found)
        for part in rest:
            if not isinstance(found, dict):
                return None
            found = found.get(part)
        return text_of(found)

    def why_not(self, rule: Rule | None) -> str:
        """Return why a rule does not match: the first condition that fails."""
        for one in rule.match if rule is not None else ():
            text = self.text(one.field)
            if text is None:
                return f"{rule}: the task has no text at {one.field}"
            if not one.glob.matches(fold(text)):
                return f"{rule}: {one.field} is {shown(text)}, not like {shown(one.glob.pattern)}"
        return str(rule)

    def _opened(self, text: str) -> object:
        if self._work_item is None:
            try:
                self._work_item = json.loads(text)
            except (ValueError, RecursionError):
                # Text that is not JSON has no fields.
                self._work_item = ""
        return self._work_item


def _about_type(rule: Rule, kind: str | None, matched: bool) -> str:
    if matched:
        return f"work_type {shown(kind or '')} matches {rule}"
    some = ", ".join(map(shown, rule.work_types[:5]))
    more = f" and {len(rule.work_types) - 5} more" if len(rule.work_types) > 5 else ""
    said = "has no work type" if kind is None else f"has work_type {shown(kind)}"
    return f"{rule} is for {some}{more}; the task {said}"


# Names that `agentbus.routing` exports.
Step = ExplanationStep
Target = RouteTarget
