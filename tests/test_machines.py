"""What users may do in any order, done at random to the bus and to models: both come to the same."""

from __future__ import annotations

import pytest

from tests.machines import base
from tests.machines.cursors import CursorMachine
from tests.machines.flags import FlagMachine
from tests.machines.notebook import NotebookMachine
from tests.machines.queue import QueueMachine
from tests.tiers import on_one_store


@pytest.mark.parametrize("machine", [FlagMachine, NotebookMachine, CursorMachine, QueueMachine])
@on_one_store
def test_whatever_is_done_in_any_order_the_bus_does_as_the_model(
    machine: type[base.Machine], url: str
) -> None:
    base.run(machine, url)
