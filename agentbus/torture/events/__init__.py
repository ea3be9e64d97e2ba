"""Events under torture: what was committed has its effect once, whatever is killed, wiped or cut off."""

from agentbus.torture.mode import Mode, from_module

MODE = Mode(
    "events",
    "producers, relays and consumers on a database: each committed event has its effect once",
    {
        "poll_by_id": "a relay that reads the outbox by id > last: loses what is committed late",
        "mark_first": "a relay that marks events before it publishes them: loses them when it dies",
        "check_then_act": "a consumer that looks, acts, and remembers later: acts twice when it dies",
        "unfenced_lease": "a lease without a fencing token: two act when its holder was frozen",
    },
    from_module("agentbus.torture.events.workload"),
    needs=("sqlalchemy",),
    extra="torture",
)
