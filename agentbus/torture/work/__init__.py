"""Queues and workers under torture: no task is lost, wrongly buried, or acknowledged by a former owner."""

from agentbus.torture.mode import Mode, from_module

MODE = Mode(
    "work",
    "queues and workers: tasks done at least once, buried only if they deserve it",
    {
        "ack_first": "acknowledges tasks before it does them",
        "ack_after": "acknowledges without asking whose a task is by now",
        "count_deliveries": "takes the server's delivery count for the number of attempts",
        "set_nx": "marks a task as seen before it does it",
        "maxlen": "trims its stream to a length when it publishes",
    },
    from_module("agentbus.torture.work.workload"),
)
