"""Archives under torture: archivers and replays are killed beside writers, while the server fails.

Each acknowledged entry must be in the archive once, or counted as lost; and a replay publishes it once.
"""

from agentbus.torture.mode import Mode, from_module

__all__ = ["MODE"]

CHECKPOINT_FIRST, APPEND_FIRST = "checkpoint_first", "append_then_checkpoint"
TEXT_ORDER, RESTART_AT_END = "ids_as_text", "restart_at_end"

MODE = Mode(
    "archive",
    "archivers and replays are killed: each entry is archived once, and replayed once",
    {
        CHECKPOINT_FIRST: "saves its position, then writes the file: an archiver killed in between loses",
        APPEND_FIRST: "writes the file, then saves its position: an archiver killed in between doubles",
        TEXT_ORDER: "goes on after the greatest id that its files hold, as text",
        RESTART_AT_END: "goes on with what is new when it is started again",
    },
    from_module("agentbus.torture.archive.workload"),
    needs=("pyspark", "pyarrow"),
    extra="pipeline",
)
