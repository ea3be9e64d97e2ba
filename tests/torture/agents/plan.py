"""How many messages the agents send, with which faults, and what each of them does."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.torture.mode import Trial
from tests.torture.nemesis import FREEZE, KILL, LOST_REPLY, SERVER_KILL

# The share of the time in which messages are sent.
_SENDING = 0.6
# Each agent's messages in a minute.
_MESSAGES = 400.0
_AGENTS, _FEW, _FEW_BELOW = 8, 5, 0.1
# Small, so that it is reached.
BOUND = 25
# In seconds. What a dead agent has leased ends soon, or is dropped by its successor.
SHORT_TTLS, LONG_TTL = (0.3, 0.6, 1.2), 30.0
_SEGMENTS = ("a", "b", "ab", "a*", "*b", "?", "*", "a?", "*a*", "**")
# More letters than a reading by the command prints at once.
_LONG = 1_600


class AgentPlan(NamedTuple):
    """How many messages each agent sends within `seconds`; inboxes hold `bound` unread ones.

    `attempts` is how often a message is sent again that was refused, `pages` how many messages a reading
    takes at most. `leaves` is the share of readings that are left in the middle of a page, `forgets` that
    of leases that nobody drops, `gives` that of leases that are given to another agent. `reads_by_command`
    is whether some agents read by the command, and `kills` the share of its runs that are killed. The
    replies that get lost are those to requests that hold `loses`, if it is not empty.
    """

    agents: int
    messages: int
    seconds: float
    faults: dict[str, int]
    bound: int = BOUND
    attempts: int = 30
    pages: tuple[int, ...] = (3, 25)
    leaves: float = 0.03
    forgets: float = 0.15
    gives: float = 0.15
    reads_by_command: bool = False
    kills: float = 0.25
    loses: bytes = b""

    @property
    def gap(self) -> float:
        """Seconds from one fault to the next."""
        return self.seconds / max(1, sum(self.faults.values()))


# Faults and pages by which a wrong implementation is sure to show itself.
_CONTROL = AgentPlan(5, 40, 2.0, {KILL: 1, SERVER_KILL: 1}, pages=(3,), leaves=0.2)
_CONTROLS = {
    "print_last": AgentPlan(4, 12, 1.5, {}, reads_by_command=True, kills=0.5),
    "by_name": AgentPlan(5, 25, 1.5, {}),
    "no_expiry": AgentPlan(5, 40, 2.5, {}, forgets=0.8),
    "clock_tokens": AgentPlan(4, 15, 1.0, {}),
    "say_again": AgentPlan(4, 60, 2.0, {LOST_REPLY: 8}, loses=b" says "),
    "keeps_given": AgentPlan(5, 40, 2.5, {}, forgets=0.0, gives=0.7),
    "gives_part": AgentPlan(5, 60, 3.0, {}, forgets=0.6, gives=0.5),
    # Urgent messages that are read again must leave room for others.
    "reads_again": _CONTROL._replace(pages=(12,)),
    "unbounded": AgentPlan(5, 40, 1.0, {}, bound=8),
    "whole_inbox": AgentPlan(5, 20, 1.0, {}, bound=8, attempts=2),
}


def planned(trial: Trial) -> AgentPlan:
    """Return the plan for a trial."""
    if trial.control is not None:
        return _CONTROLS.get(trial.control, _CONTROL)
    faults = trial.faults({KILL: 20.0, FREEZE: 6.0})
    faults[KILL] = max(4, faults[KILL])
    return AgentPlan(
        agents=_AGENTS if trial.minutes >= _FEW_BELOW else _FEW,
        messages=trial.number(_MESSAGES, 40),
        seconds=trial.minutes * 60 * _SENDING,
        faults=faults,
        reads_by_command=True,
    )


def patterns(chance: random.Random, here: str) -> dict[str, str]:
    """Return patterns to lease by how they are spelled: below `here`, relative to it, or with a dot."""
    found = {}
    for _ in range(chance.choice((1, 1, 2, 3))):
        segments = [chance.choice(_SEGMENTS) for _ in range(chance.choice((1, 2, 2, 3)))]
        folder = chance.random() < 0.3
        spelled = chance.choice(("", "./", f"{here}/")) + "/".join(segments) + "/" * folder
        whole = [*segments, *["**"] * folder]
        found[spelled] = "/".join(
            segment for at, segment in enumerate(whole) if whole[at - 1 : at + 1] != ["**", "**"]
        )
    return found


def text_of(name: str, number: int, attempt: int, *, long: bool) -> str:
    """Return the text of an agent's message; each attempt has its own."""
    return f"{name} says {number}.{attempt}{'x' * _LONG if long else ''}"
