"""Addresses: `NAME@project` reaches the agent of that name in another project of the same server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import ConfigError, UsageError
from agentbus.core.keys import Keys
from agentbus.store.failures import NotPermitted, WrongType
from agentbus.store.steps import Command

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Script


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """An agent, `shown` as this project writes it; `name` and `keys` are those of the agent's project.

    `sender` is the address of this scope's agent, as the agent's project writes it.
    """

    shown: str
    name: str
    keys: Keys
    sender: str

    def outward(self, scope: Scope, known: str) -> str:
        """Return a message id of this project as the agent's project writes it."""
        return _carried(known, scope.agent, scope.keys.project, self.keys.project)

    def inward(self, scope: Scope, known: str) -> str:
        """Return a message id of the agent's project as this project writes it."""
        return _carried(known, self.name, self.keys.project, scope.keys.project)


def find(scope: Scope, agent: str) -> Op[AgentAddress]:
    """Return the address of one agent, like `find_all`."""
    (address,) = yield from find_all(scope, [agent])
    return address


def find_all(scope: Scope, agents: Sequence[str]) -> Op[list[AgentAddress]]:
    """Return the addresses of agents.

    The name of an agent of this project may contain an `@`, and is then no address. Raises `UsageError` for
    an agent of another project of a Redis Cluster.
    """
    doubtful = [agent for agent in agents if names.split_address(agent)[1] is not None]
    here: dict[str, bool] = {}
    if doubtful:
        scores = yield Command("ZMSCORE", scope.keys.agents, *doubtful)
        here = {agent: score is not None for agent, score in zip(doubtful, scores, strict=True)}
    for agent in [agent for agent in doubtful if not here[agent] and agent.startswith("human:")]:
        # A person may be asked before having used the project, by a name such as human:ada@example.org.
        here[agent] = not (yield from _is_known(*names.split_address(agent)))
    return [_address(scope, agent, is_here=here.get(agent, True)) for agent in agents]


def at(scope: Scope, address: AgentAddress) -> Scope:
    """Return the scope in the project of an address, for what only reads."""
    if address.keys.project == scope.keys.project:
        return scope
    there = copy(scope)
    there.keys = address.keys
    return there


def _is_known(name: str, project: str | None) -> Op[bool]:
    try:
        return (yield Command("ZSCORE", Keys(project or "").agents, name)) is not None
    except (NotPermitted, WrongType):
        return False


def _address(scope: Scope, agent: str, *, is_here: bool) -> AgentAddress:
    own, (name, project) = scope.keys.project, names.split_address(agent)
    if is_here or project is None:
        return AgentAddress(agent, agent, scope.keys, scope.agent)
    if project in (own, own.strip("{}")):
        return AgentAddress(name, name, scope.keys, scope.agent)
    if "{" in own + project:
        raise UsageError(
            f"{names.word(agent)} cannot be reached from the project {own}: a Redis Cluster serves no"
            " request about two projects",
            hint="send it as an agent of that project",
            shell_hint=f"send it with --project {names.shell_word(project)}",
        )
    return AgentAddress(agent, name, Keys(project), names.name("agent", f"{scope.agent}@{own}"))


def run(step: Script, addresses: Iterable[AgentAddress], scope: Scope) -> Op[Any]:
    """Run a step on the inboxes of agents. Raises `ConfigError` if it may not reach another project."""
    try:
        return (yield step)
    except NotPermitted as error:
        others = [address for address in addresses if address.keys.project != scope.keys.project]
        if not others:
            raise
        project = others[0].keys.project
        raise ConfigError(
            f"this user of the server may not reach {names.word(others[0].shown)}: its ACL rule does not"
            f" cover the project {project}",
            hint="an administrator adds these to the user's rule:"
            f" '~{project}:inbox:*' '~{project}:agents' '~{project}:who:*'",
        ) from error


def _carried(known: str, own: str, here: str, there: str) -> str:
    """Return a message id of one project as another project writes it; `own` is an agent here."""
    entry_id, _, agent = known.partition("@")
    name, project = (agent, None) if agent == own else names.split_address(agent)
    if here == there or project not in (None, there):
        return known
    return f"{entry_id}@{name}" if project else f"{known}@{here}"
