"""Archives and replays whose processes are killed, beside writers, while the server and the network fail.

Afterwards all that was acknowledged is in the archive once, or counted as lost; and a replay of it is
published once.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentbus.torture.order import Mode, Order
from agentbus.torture.verdict import Verdict

__all__ = ["MODE"]

CHECKPOINT_FIRST, APPEND_FIRST = "checkpoint_first", "append_then_checkpoint"
TEXT_ORDER, RESTART_AT_END = "ids_as_text", "restart_at_end"
_CONTROLS = {
    CHECKPOINT_FIRST: "an archiver saves how far it is, then writes the file: killed in between it loses",
    APPEND_FIRST: "an archiver writes the file, then saves how far it is: killed in between it doubles",
    TEXT_ORDER: "an archiver goes on after the greatest id that its files hold, as text",
    RESTART_AT_END: "an archiver that is started again goes on with what is new",
}


def _torture(order: Order) -> Iterator[Verdict]:
    # Loaded here, since the processes that it starts are modules of this package.
    from agentbus.torture.archive import controlled, run

    yield controlled.torture(order) if order.control else run.torture(order)


MODE = Mode(
    "archive",
    "archivers and replays are killed: each entry is archived once, and published anew once",
    _CONTROLS,
    _torture,
    needs=("pyspark", "pyarrow"),
    extra="pipeline",
)
