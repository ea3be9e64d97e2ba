"""Sends messages to agents, each into the agent's inbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from agentbus.coordination import address
from agentbus.coordination.inbox import (
    MOST_UNREAD,
    as_message,
    keys_of,
    message_id,
    mistake,
    no_message,
    not_found,
    split_id,
    split_own_id,
)
from agentbus.coordination.lease_step import own_repository
from agentbus.coordination.leases import not_own, patterns
from agentbus.coordination.presence import state_of
from agentbus.core import names
from agentbus.core.errors import InboxFull, NoSuchAgent, TooManyMessages
from agentbus.core.stream import is_number, score, text
from agentbus.store.scope import NAMES_KEPT
from agentbus.store.steps import Command, Script

if TYPE_CHECKING:
    from agentbus.coordination.address import AgentAddress
    from agentbus.coordination.inbox import InboxMessage
    from agentbus.core.errors import AgentBusError
    from agentbus.core.keys import Keys
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Period in seconds of the limit on messages between two agents; more suggest a loop of programs.
_EXCHANGED_IN = 60
# The topic of an ask for an approval, and the first words of an answer that gives or refuses it.
APPROVAL = "approval"
_VERDICTS = {
    **dict.fromkeys(("yes", "y", "approve", "approved"), True),
    **dict.fromkeys(("no", "n", "refuse", "refused", "reject", "rejected"), False),
}
# Maximum number of names to compare with a mistyped name.
_COMPARED = 1_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent to one agent, and that agent's known state.

    `state` is the agent's presence (`active`, `idle`, `waiting`, `gone`) or None, `seen` the unix time of
    its last activity or None, and `unread` the number of its unread messages, including this one. `answer`
    is the reply, if it was awaited. `repeated` is true for a reply to a message that was already answered;
    nothing is then sent, and `id` is the id of the first reply.
    """

    id: str
    to: str
    state: str | None
    seen: float | None
    unread: int
    answer: InboxMessage | None = None
    repeated: bool = False


def tell(
    scope: Scope,
    to: Sequence[str],
    body: str,
    *,
    topic: str | None = None,
    thread: str | None = None,
    urgent: bool = False,
    ask: bool = False,
    file: str | None = None,
    give: Sequence[str] = (),
) -> Op[list[Sent]]:
    """Put a message into the inboxes of all agents or of none; it is an ask if it ends with `?`.

    `NAME@project` is an agent of another project. With `give`, this agent's leases of these paths pass to
    the recipient in the same step.
    """
    _, sent = yield from tell_now(
        scope,
        to,
        body,
        topic=topic,
        thread=thread,
        urgent=urgent,
        ask=ask,
        file=file,
        give=give,
    )
    return sent


def tell_now(
    scope: Scope,
    to: Sequence[str],
    body: str,
    *,
    topic: str | None = None,
    thread: str | None = None,
    urgent: bool = False,
    ask: bool = False,
    file: str | None = None,
    give: Sequence[str] = (),
) -> Op[tuple[float, list[Sent]]]:
    """Return the server's time, and the result of `tell`."""
    agents = [*dict.fromkeys(names.name("agent", agent) for agent in names.items("agent", to))]
    if not agents:
        raise mistake("no agent was named", hint="name at least one")
    names.at_most("agent", len(agents))
    addresses = yield from address.find_all(scope, agents)
    recipients = [*{(each.keys.project, each.name): each for each in addresses}.values()]
    own = scope.keys.project
    if scope.remote and (away := [each.shown for each in recipients if each.keys.project != own]):
        raise mistake(
            f"{names.word(away[0])} is in another project, and this agent's token is for {own}",
            hint="tell an agent of this project, or answer what came from there",
        )
    said = names.body("message", body, scope.max_body)
    words = ["message", said]
    if topic is not None:
        words += ["topic", names.name("topic", topic)]
    if thread is not None:
        if len({each.keys.project for each in recipients}) > 1:
            raise mistake(
                "the thread has agents of several projects",
                hint="send it to those of one at a time",
            )
        words += ["thread", recipients[0].outward(scope, message_id(*split_id(thread)))]
    words += ["ask", "1"] if ask or said.rstrip().endswith("?") else []
    words += ["urgent", "1"] if urgent else []
    words += ["file", file] if file else []
    patterns = _patterns(scope, recipients, give) if give else []
    if patterns:
        words += ["gives", json.dumps(patterns, ensure_ascii=False)]
    return (yield from _send(scope, recipients, words, urgent=urgent, gives=patterns))


def reply(scope: Scope, answered: str, body: str) -> Op[Sent]:
    """Reply to a message in this agent's inbox, in its thread; a second reply to it sends nothing."""
    _, sent = yield from reply_now(scope, answered, body)
    return sent


def reply_now(scope: Scope, answered: str, body: str) -> Op[tuple[float, Sent]]:
    """Return the server's time, and the result of `reply`."""
    entry_id, agent = split_own_id(scope, answered)
    said = names.body("message", body, scope.max_body)
    if agent != scope.agent:
        raise not_found(
            f"{answered!a:.300} is a message to {names.word(agent)},"
            f" and this agent is {names.word(scope.agent)}",
            hint="answer messages to this agent, or connect as the other one",
            shell_hint="answer messages to this agent, or give --agent",
        )
    page = yield Command("XRANGE", scope.keys.inbox(agent), entry_id, entry_id)
    message = as_message(agent, *page[0]) if page else None
    if message is None or not message.agent_id:
        raise no_message(answered)
    if asks_approval(message) and verdict(said)[0] is None:
        raise mistake(
            f"{message.id} asks for an approval, and the answer says neither yes nor no",
            hint="begin it with yes or no; a reason may follow",
        )
    sender = yield from address.find(scope, message.agent_id)
    thread, reply_to = (sender.outward(scope, known) for known in (message.thread, message.id))
    words = ["message", said, "thread", thread, "reply_to", reply_to]
    words += ["topic", message.topic] if message.topic else []
    now, (sent,) = yield from _send(scope, [sender], words, answered=entry_id)
    return now, sent


def is_person(agent: str) -> bool:
    """Tell whether a name is that of a person, `human:<name>`."""
    return agent.startswith("human:") and agent != "human:"


def asks_approval(message: InboxMessage) -> bool:
    """Tell whether a message asks a person for an approval."""
    return message.ask and message.topic == APPROVAL and is_person(message.to)


def verdict(answer: str) -> tuple[bool | None, str | None]:
    """Return whether an answer approves, None if it says neither yes nor no, and its reason."""
    first, *rest = answer.split(None, 1)
    word = first.rstrip(",.:;!-")
    reason = rest[0].lstrip(",.:;!- ").strip() if rest else ""
    return _VERDICTS.get(word.lower()), reason or None


def _send(
    scope: Scope,
    to: Sequence[AgentAddress],
    words: Sequence[str],
    *,
    urgent: bool = False,
    answered: str = "",
    gives: Sequence[str] = (),
) -> Op[tuple[float, list[Sent]]]:
    keys, once, agent = scope.keys, scope.once(), scope.agent
    words = [*words, "sub", scope.sub] if scope.sub else words
    argv: list[str | int] = [agent, once.token, answered, MOST_UNREAD]
    argv += [scope.exchange_limit, _EXCHANGED_IN * 1000, int(urgent), len(words), *words]
    argv += [len(gives), *gives, own_repository(scope) if gives else ""]
    for each in to:
        argv += [each.shown, _kept(each.name), each.name, each.sender]
    step = Script(
        "tell",
        (
            *(keys.agents, once.key, keys.leases, keys.lease_fence, keys.lease_bell),
            *keys_of(keys, agent),
            to[0].keys.asks(to[0].name) if answered else keys.asks(agent),
            *(
                key
                for each in to
                for key in (
                    each.keys.agents,
                    *keys_of(each.keys, each.name)[:2],
                    each.keys.who(each.name),
                )
            ),
        ),
        argv,
        writes=True,
    )
    reply = yield from address.run(step, to, scope)
    scope.free_slot(once, step)
    outcome = text(reply[0])
    if outcome in ("sent", "before"):
        before = outcome == "before"
        sent = [
            _sent(each.shown, fields, before) for each, fields in zip(to, reply[2:], strict=True)
        ]
        return int(reply[1]) / 1000, sent
    if outcome == "nobody":
        unknown = [text(name) for name in reply[1:]]
        elsewhere = {each.keys.project: each.keys for each in to if each.shown in unknown}
        raise (yield from nobody(scope, unknown, elsewhere))
    if outcome == "unleased":
        raise not_own(scope, gives[int(reply[1]) - 1], reply[2])
    raise _refused(outcome, text(reply[1]), int(reply[2]))


def _sent(agent: str, fields: list[Any], before: bool) -> Sent:
    entry_id, unread, state, at, last, *place = fields
    shown = text(at)
    recorded = int(shown) / 1000 if is_number(shown) else None
    used = score(last) if last else None
    seen = max((moment for moment in (recorded, used) if moment is not None), default=None)
    words = ("state", "seen", "host", "pid", "process")
    named = dict(zip(words, map(text, (state, at, *place)), strict=True))
    # The id of an earlier reply already names its agent.
    known = text(entry_id)
    return Sent(
        known if before else message_id(known, agent),
        agent,
        state_of(agent, used or 0.0, named),
        seen,
        int(unread),
        repeated=before,
    )


def _patterns(scope: Scope, to: Sequence[AgentAddress], give: Sequence[str]) -> list[str]:
    if isinstance(give, str):
        raise mistake("the paths to give are one text", hint="give a list of paths")
    if len(to) > 1:
        raise mistake("leases are given to several agents", hint="give them to one agent")
    if to[0].keys.project != scope.keys.project:
        raise mistake(
            f"leases are given to an agent of the project {to[0].keys.project}",
            hint="give them to an agent of this project",
        )
    if to[0].name == scope.agent:
        raise mistake("leases are given to their holder", hint="give them to another agent")
    return patterns(give, by_worktree=scope.leases_by_worktree, from_root=scope.remote)


def _kept(agent: str) -> str:
    """Return the ms to keep the inbox of an unnamed session; '' for a named agent."""
    user_at_host, _, number = agent.rpartition("~")
    return str(NAMES_KEPT * 1000) if "@" in user_at_host and is_number(number) else ""


def nobody(
    scope: Scope, unknown: Sequence[str], elsewhere: Mapping[str, Keys] = {}
) -> Op[AgentBusError]:
    """Return the error for agents that never used the project, or others, with names like theirs."""
    own, others = scope.keys.project, list[str]()
    for project, keys in {own: scope.keys, **elsewhere}.items():
        latest = yield Command("ZREVRANGE", keys.agents, 0, _COMPARED - 1)
        others += [text(name) + ("" if project == own else f"@{project}") for name in latest]
    others = [name for name in others if name != scope.agent]
    near: dict[str, None] = {}
    for name in unknown:
        near |= dict.fromkeys(
            other for other in others if other.startswith(name) or name.startswith(other)
        )
        near |= dict.fromkeys(get_close_matches(name, others))
    shown = [names.word(name) for name in [*near][:3]] or [names.word(name) for name in others[:3]]
    said = "nobody else was ever here"
    if near:
        said = f"did you mean {' or '.join(shown)}?"
    elif shown:
        said = f"here were, the last first: {', '.join(shown)}"
    return NoSuchAgent(
        f"nobody was ever here by the name of {', '.join(map(names.word, unknown))}; {said}",
        hint="bus.present(all=True) returns all who were",
        shell_hint="see 'agentbus who --all' for all who were",
    )


def _refused(outcome: str, agent: str, number: int) -> AgentBusError:
    who = names.word(agent)
    if outcome == "full":
        return InboxFull(
            f"the inbox of {who} is full: {number} messages are unread",
            hint="send it again when some are read",
        )
    return TooManyMessages(
        f"{number} messages went between this agent and {who} in the last {_EXCHANGED_IN} s",
        hint="slow down, or raise it with a person",
    )
