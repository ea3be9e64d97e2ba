"""Flags under torture: many contend for each, and a fenced resource knows who held it when."""

from agentbus.torture.mode import Mode, from_module

MODE = Mode(
    "flags",
    "rounds in which many race for a flag, with holders killed and frozen in their sections",
    {
        "check_then_wait": "looks at the flag, then waits for news: the news in between is missed",
        "unfenced_lease": "SET NX with an expiry, ended by a DEL, and nothing that the resource can check",
        "check_then_set": "looks whether the flag is free, then takes it",
    },
    from_module("agentbus.torture.flags.workload"),
)
