"""Loads a team's rules from YAML, and reports all their mistakes at once."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from typing import TYPE_CHECKING

from agentbus.core import config_file, names, yaml_reader
from agentbus.core.errors import UsageError
from agentbus.core.validate import Located, Problems, shown
from agentbus.queues.ids import OF_THE_BUS
from agentbus.routing import reach, targets
from agentbus.routing.glob import Glob
from agentbus.routing.rules import TEXT_FIELD, Agent, Condition, Limit, RouteTarget, Rule, Rules

if TYPE_CHECKING:
    from agentbus.core.validate import Problem
    from agentbus.routing.targets import Team

MAX_BYTES = 1024 * 1024
_KEYS = ("incoming", "team", "agents", "rules", "default", "limits", "loops", "dedup")
_RULE_KEYS = ("work_type", "match", "to", "by")
_WHOLE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_DEEPEST = 100


def load(path: str | os.PathLike[str]) -> Rules:
    """Return the rules in a file. Raises `ConfigError`, which lists every problem with its line."""
    name = os.fspath(path)
    hint = "correct its path or its permissions"
    data = config_file.contents(name, "rules file", hint=hint, most=MAX_BYTES)
    return parse(data, name)


def parse(text: str | bytes, name: str = "rules") -> Rules:
    """Return the rules in a text (UTF-8 if it is bytes); errors call the file `name`.

    Raises `ConfigError`, which lists every problem with its line.
    """
    problems = Problems(name)
    rules = _read(text, name, problems)
    if rules is None or problems:
        raise problems.error()
    return rules


def check(text: str | bytes, name: str = "rules") -> tuple[Problem, ...]:
    """Return the problems of the rules in a text, by line; none if they can be loaded."""
    problems = Problems(name)
    _read(text, name, problems)
    return problems.all()


def _read(text: str | bytes, name: str, problems: Problems) -> Rules | None:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        problems.add(1, f"the file has over {MAX_BYTES} bytes", "split the team in two")
        return None
    root = yaml_reader.read(data, problems)
    if root is None:
        return None
    if root.is_nothing:
        if not problems:
            root.add("the file is empty", "name at least the agents: 'agents: [alice, bob]'")
        return None
    given = root.fields(_KEYS, "'key: value' lines")
    if not isinstance(root.value, dict):
        return None
    return _rules_of(given, root, name, sha256(data).hexdigest())


def _rules_of(given: dict[str, Located], root: Located, path: str, digest: str) -> Rules:
    """Return the rules, leaving out parts with mistakes, which are reported as problems."""
    problems, nothing = root.problems, Located(None, root.problems)
    team = given["team"].name("team") if "team" in given else None
    incoming = _incoming(given["incoming"]) if "incoming" in given else "incoming"
    limits = given.get("limits", nothing).fields(("agent", "type"))
    for_agents = targets.limit(limits["agent"]) if "agent" in limits else None
    roster = targets.team(given.get("agents"), root)
    rules = _rules(given["rules"], roster) if "rules" in given else []
    default = targets.default(given["default"], roster) if "default" in given else None
    warnings = reach.check_rules(rules, problems)
    warnings += reach.check_agents(roster.lines, rules, default)
    loops = given.get("loops", nothing).fields(("depth", "window"))
    return Rules(
        path=path,
        incoming=incoming,
        team=team,
        agents=_agents(roster, team, incoming, for_agents, problems),
        rules=rules,
        default=default,
        limits=_limits(limits.get("type", nothing)),
        depth=(_whole(loops["depth"], _DEEPEST) if "depth" in loops else None) or 5,
        window=(loops["window"].seconds(1) if "window" in loops else None) or 1800.0,
        dedup=(given["dedup"].seconds(1) if "dedup" in given else None) or 300.0,
        warnings=[f"{problems.at(line)}{what}" for line, what in sorted(warnings)],
        digest=digest,
    )


def _incoming(given: Located) -> str:
    queue = given.name("incoming")
    if queue is not None and queue.startswith(OF_THE_BUS):
        given.add(f"the queue {shown(queue)} belongs to the bus itself", "name another queue")
    return queue or "incoming"


def _agents(
    roster: Team, team: str | None, incoming: str, limit: Limit | None, problems: Problems
) -> dict[str, Agent]:
    stem = "agent" if team is None else f"team.{team}"
    made = {}
    for name, line in roster.lines.items():
        queue = f"{stem}.{name}"
        try:
            names.name("queue", queue)
        except UsageError as error:
            problems.add(line, f"{error.message}, for the agent", "shorten its name")
        if queue == incoming:
            problems.add(
                line,
                f"the queue of the agent {shown(name)} is the one at which tasks come in",
                "rename the agent, or give another 'incoming'",
            )
        made[name] = Agent(name, queue, roster.limits.get(name, limit))
    return made


def _rules(given: Located, roster: Team) -> list[Rule]:
    if not isinstance(given.value, list) or not given.value:
        given.wrong("a list of rules, each after '- '")
        return []
    return [_rule(number, one, roster) for number, one in enumerate(given.items(), 1)]


def _rule(number: int, given: Located, roster: Team) -> Rule:
    given.key, given.owner = "", f"rule {number}"
    fields = given.fields(_RULE_KEYS, "'work_type: ...' and 'to: ...'")
    if not isinstance(given.value, dict):
        return Rule(number, given.line, RouteTarget(()))
    kinds, match = fields.get("work_type"), fields.get("match")
    if (kinds is None) == (match is None):
        which = "neither 'work_type' nor" if kinds is None else "both 'work_type' and"
        given.add(f"{given.what} has {which} 'match'", "give one of the two")
    return Rule(
        number,
        given.line,
        targets.target(fields, given, roster),
        () if kinds is None else tuple(targets.several(kinds, "work type", given)),
        () if match is None else _conditions(match),
    )


def _conditions(given: Located) -> tuple[Condition, ...]:
    if isinstance(given.value, str):
        field = Located(TEXT_FIELD, given.problems, line=given.line)
        pairs = [(field, given)]
    elif isinstance(given.value, dict) and given.value:
        pairs = list(given.entries("a map"))
    else:
        given.wrong("a pattern, or a map of fields and their patterns")
        return ()
    found = (_condition(field, one) for field, one in pairs)
    return tuple(condition for condition in found if condition is not None)


def _condition(field: Located, given: Located) -> Condition | None:
    name, pattern = field.name("field"), given.name("pattern")
    if name is not None and not all(name.split(".")):
        field.add(
            f"the field {shown(name)} has an empty part",
            "name a field of the task, as in 'work_item.repo'",
        )
    return None if name is None or pattern is None else Condition(name, Glob(pattern))


def _limits(given: Located) -> dict[str, Limit]:
    found: dict[str, Limit] = {}
    for key, one in given.entries("a map of work types and their limits", "the work type"):
        kind = key.name("work type")
        one.key = "limit"
        limit = targets.limit(one, may_be_on=False)
        if kind is not None and limit is not None:
            found[kind] = limit
    return found


def _whole(given: Located, most: int) -> int | None:
    if isinstance(given.value, str) and _WHOLE.fullmatch(given.value):
        given.value = int(given.value)
    return given.whole(1, most)
