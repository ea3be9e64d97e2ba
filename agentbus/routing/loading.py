"""Loads a team's rules from YAML, and tells everything that is wrong with them at once."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING

from agentbus.core import config_file, names
from agentbus.core.errors import UsageError
from agentbus.routing import amounts, document, reach, targets
from agentbus.routing.amounts import about
from agentbus.routing.document import Fields, Items, Text
from agentbus.routing.glob import Glob
from agentbus.routing.problems import Problems, shown
from agentbus.routing.rules import TEXT_FIELD, Agent, Condition, Limit, Rule, Rules

if TYPE_CHECKING:
    from agentbus.routing.document import Node
    from agentbus.routing.problems import Problem
    from agentbus.routing.targets import Team

MAX_BYTES = 1024 * 1024
_KEYS = ("incoming", "team", "agents", "rules", "default", "limits", "loops", "dedup")
_RULE_KEYS = ("work_type", "match", "to", "by")
_DEEPEST = 100


def load(path: str | os.PathLike[str]) -> Rules:
    """Return the rules in a file. Raises `ConfigError`, which lists every problem with its line."""
    name = os.fspath(path)
    data = config_file.contents(name, "rules file", hint="correct its path or its permissions")
    return parse(data, name)


def parse(text: str | bytes, name: str = "rules") -> Rules:
    """Return the rules in a text, UTF-8 if it is bytes; `name` stands for the file in what is said.

    Raises `ConfigError`, which lists every problem with its line.
    """
    problems = Problems(_plain(name))
    rules = _read(text, name, problems)
    if rules is None or problems:
        raise problems.error()
    return rules


def check(text: str | bytes, name: str = "rules") -> tuple[Problem, ...]:
    """Return what is wrong with the rules in a text, by line: nothing, if they can be loaded."""
    problems = Problems(_plain(name))
    _read(text, name, problems)
    return problems.all()


def _read(text: str | bytes, name: str, problems: Problems) -> Rules | None:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        problems.add(1, f"the file has over {MAX_BYTES} bytes", "split the team in two")
        return None
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.add(line, "the file is not UTF-8", "save it as UTF-8")
        return None
    root = document.read(decoded, problems)
    if root is None or (isinstance(root, Text) and root.is_nothing):
        if not problems:
            problems.add(1, "the file is empty", "name at least the agents: 'agents: [alice, bob]'")
        return None
    if not isinstance(root, Fields):
        problems.add(
            root.line, f"the file holds a {amounts.kind(root)}", "write 'key: value' lines"
        )
        return None
    return _File(root, problems).rules(name, sha256(data).hexdigest())


class _File:
    """Makes rules of one file's content; goes on after a mistake, so as to find them all."""

    def __init__(self, root: Fields, problems: Problems) -> None:
        self._problems = problems
        self._root = root
        self._given = self._fields(root, _KEYS, "")

    def rules(self, path: str, digest: str) -> Rules:
        """Return the rules; what was wrong is among the problems, and something else in its place."""
        given, problems = self._given, self._problems
        team = self._name("team") if "team" in given else None
        incoming = self._name("incoming") if "incoming" in given else None
        for_agents, for_types = self._limits()
        roster = targets.team(given.get("agents"), self._root.line, problems)
        rules = self._rules(roster)
        default = None
        if "default" in given:
            default = targets.default(given["default"], roster, problems)
        warnings = reach.check_rules(rules, problems)
        warnings += reach.check_agents(roster.lines, rules, default)
        told = [f"{problems.name}:{line}: {what}" for line, what in sorted(warnings)]
        depth, window = self._loops()
        dedup = 300.0
        if "dedup" in given:
            dedup = amounts.seconds(given["dedup"], "'dedup'", dedup, problems)
        return Rules(
            path=path,
            incoming=incoming or "incoming",
            team=team,
            agents=self._agents(roster, team, incoming or "incoming", for_agents),
            rules=rules,
            default=default,
            limits=for_types,
            depth=depth,
            window=window,
            dedup=dedup,
            warnings=told,
            digest=digest,
        )

    def _agents(
        self, roster: Team, team: str | None, incoming: str, limit: Limit | None
    ) -> dict[str, Agent]:
        stem = "agent" if team is None else f"team.{team}"
        made = {}
        for name, line in roster.lines.items():
            queue = f"{stem}.{name}"
            try:
                names.name("queue", queue)
            except UsageError as error:
                self._problems.add(line, f"{error.message}, for the agent", "shorten its name")
            if queue == incoming:
                self._problems.add(
                    line,
                    f"the queue of the agent {shown(name)} is the one at which tasks come in",
                    "rename the agent, or give another 'incoming'",
                )
            made[name] = Agent(name, queue, roster.limits.get(name, limit))
        return made

    def _rules(self, roster: Team) -> list[Rule]:
        node = self._given.get("rules")
        if node is None:
            return []
        if not isinstance(node, Items) or not node.items:
            said = "an empty list" if isinstance(node, Items) else about(node)
            self._problems.add(
                node.line, f"'rules' is {said}", "write a list of rules, each after '- '"
            )
            return []
        found = (self._rule(number, one, roster) for number, one in enumerate(node.items, 1))
        return [rule for rule in found if rule is not None]

    def _rule(self, number: int, node: Node, roster: Team) -> Rule | None:
        problems, what = self._problems, f"rule {number}"
        if not isinstance(node, Fields):
            problems.add(
                node.line, f"{what} is {about(node)}", "write 'work_type: ...' and 'to: ...'"
            )
            return None
        given = self._fields(node, _RULE_KEYS, f" in {what}")
        kinds, match = given.get("work_type"), given.get("match")
        if (kinds is None) == (match is None):
            which = "neither 'work_type' nor" if kinds is None else "both 'work_type' and"
            problems.add(node.line, f"{what} has {which} 'match'", "give one of the two")
        target = targets.target(given, node.line, what, roster, problems)
        return Rule(
            number,
            node.line,
            target,
            () if kinds is None else self._work_types(kinds, what),
            () if match is None else self._conditions(match, what),
        )

    def _work_types(self, node: Node, what: str) -> tuple[str, ...]:
        found: list[str] = []
        for one in targets.several(node, f"'work_type' of {what}", self._problems):
            kind = targets.named(one, "work type", self._problems)
            if kind is not None and kind in found:
                self._problems.add(
                    one.line, f"{what} names the work type {shown(kind)} twice", "name it once"
                )
            elif kind is not None:
                found.append(kind)
        return tuple(found)

    def _conditions(self, node: Node, what: str) -> tuple[Condition, ...]:
        if isinstance(node, Items) or (isinstance(node, Fields) and not node.fields):
            said = about(node) if isinstance(node, Items) else "an empty map"
            self._problems.add(
                node.line,
                f"'match' of {what} is {said}",
                "write a pattern, or a map of fields and their patterns",
            )
            return ()
        pairs = ((Text(node.line, TEXT_FIELD), node),) if isinstance(node, Text) else node.fields
        found = (self._condition(field, one) for field, one in pairs)
        return tuple(condition for condition in found if condition is not None)

    def _condition(self, field: Text, node: Node) -> Condition | None:
        name = targets.named(field, "field", self._problems)
        pattern = targets.named(node, "pattern", self._problems)
        if name is not None and not all(name.split(".")):
            self._problems.add(
                field.line,
                f"the field {shown(name)} has an empty part",
                "name a field of the task, as in 'work_item.repo'",
            )
        return None if name is None or pattern is None else Condition(name, Glob(pattern))

    def _limits(self) -> tuple[Limit | None, dict[str, Limit]]:
        given = self._part("limits", ("agent", "type"))
        for_agents = None
        if "agent" in given:
            for_agents = amounts.limit(given["agent"], "'limits.agent'", self._problems)
        for_types: dict[str, Limit] = {}
        by_type = given.get("type")
        if by_type is not None and not isinstance(by_type, Fields):
            self._problems.add(
                by_type.line,
                f"'limits.type' is {about(by_type)}",
                "write a map of work types and their limits",
            )
        elif by_type is not None:
            for key, node in by_type.fields:
                kind = targets.named(key, "work type", self._problems)
                what = f"the limit of the work type {shown(key.text)}"
                limit = amounts.limit(node, what, self._problems, may_be_on=False)
                if kind is not None and limit is not None:
                    for_types[kind] = limit
        return for_agents, for_types

    def _loops(self) -> tuple[int, float]:
        given = self._part("loops", ("depth", "window"))
        depth, window = 5, 1800.0
        if "depth" in given:
            depth = amounts.whole(given["depth"], "'loops.depth'", _DEEPEST, depth, self._problems)
        if "window" in given:
            window = amounts.seconds(given["window"], "'loops.window'", window, self._problems)
        return depth, window

    def _part(self, key: str, known: tuple[str, ...]) -> dict[str, Node]:
        node = self._given.get(key)
        if node is None:
            return {}
        if not isinstance(node, Fields):
            keys = " and ".join(f"'{word}: ...'" for word in known)
            self._problems.add(node.line, f"'{key}' is {about(node)}", f"write {keys} below it")
            return {}
        return self._fields(node, known, f" in '{key}'")

    def _name(self, key: str) -> str | None:
        return targets.named(self._given[key], key, self._problems)

    def _fields(self, node: Fields, known: tuple[str, ...], where: str) -> dict[str, Node]:
        return targets.fields(node, known, where, self._problems)


def _plain(name: str) -> str:
    """Return a file's name in ASCII, on one line."""
    return ascii(name)[1:-1]
