"""How much is said, by how many agents, and which faults happen meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from agentbus.torture import nemesis
from agentbus.torture.mode import Trial

# A listener is frozen until the channel was trimmed past its cursor.
OVERTAKE = "overtake"
# The share of the time in which agents speak.
_TALKING = 0.8
_A_MINUTE = {
    nemesis.KILL: 10.0,
    nemesis.FREEZE: 5.0,
    nemesis.CUT: 5.0,
    nemesis.HALF_OPEN: 4.0,
    nemesis.LATENCY: 4.0,
    nemesis.LOST_REPLY: 5.0,
    nemesis.LOST_REQUEST: 4.0,
    nemesis.SERVER_KILL: 4.0,
    nemesis.SLOW_DISK: 3.0,
    nemesis.FULL_MEMORY: 2.0,
    nemesis.CLOCK: 2.0,
}
# Faults that a wrong implementation is sure to show itself by.
_CONTROL = {
    nemesis.KILL: 2,
    nemesis.FREEZE: 1,
    nemesis.LOST_REPLY: 5,
    nemesis.CUT: 2,
    nemesis.SERVER_KILL: 1,
}
_LEAST_BOUND = 300


class TalkPlan(NamedTuple):
    """How many messages each agent says within `seconds`, on a channel of `bound` entries.

    The replies that get lost are those to requests that hold `loses`, if it is not empty.
    """

    agents: int
    messages: int
    bound: int
    seconds: float
    faults: dict[str, int]
    loses: bytes = b""

    @property
    def gap(self) -> float:
        """Seconds from one fault to the next."""
        return self.seconds / max(1, sum(self.faults.values()))


def planned(trial: Trial) -> TalkPlan:
    """Return the plan for a trial."""
    if trial.control is not None:
        # Of a few lost replies all might be to agents that overhear: only those to speak are lost.
        return TalkPlan(5, 150, _LEAST_BOUND, 4.0, _CONTROL, loses=b"XADD")
    messages = trial.number(1000, 50)
    faults = {
        **trial.faults(_A_MINUTE),
        nemesis.KILL: trial.number(_A_MINUTE[nemesis.KILL], 3),
        OVERTAKE: trial.number(1, 0),
    }
    # Small enough to overtake a frozen agent, and large enough not to overtake others all the time.
    bound = min(2000, max(_LEAST_BOUND, messages // 2))
    return TalkPlan(10, messages, bound, trial.minutes * 60 * _TALKING, faults)
