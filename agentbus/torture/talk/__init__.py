"""Talk under torture: agents speak, overhear and take notes while processes, network and server fail."""

from agentbus.torture.mode import Mode, from_module

MODE = Mode(
    "talk",
    "10 agents speak, overhear and take notes: nothing lost, doubled, or out of order",
    {
        "poll_by_id": "asks for the newest 20 now and then, and moves its cursor before it hands them out",
        "maxlen": "trims the channel to 20 entries at each speak, and never tells who missed what",
        "say_again": "repeats a message that was not answered, as if it had not been said",
    },
    from_module("agentbus.torture.talk.workload"),
)
