"""Runs a verb that waits, or logs each exchange, with the lines that the operations log needs for it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal

from agentbus.commands import _signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from agentbus.commands._declare import Call, Verb


@contextlib.contextmanager
def noted(last: Callable[[int, str], None]) -> Iterator[None]:
    """Call `last` with the exit code and the outcome if SIGTERM or SIGHUP ends this process at once.

    A handler that the verb installs itself takes precedence.
    """

    def act(number: int, _frame: object) -> None:
        last(128 + number, f"ended by {signal.Signals(number).name}")
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    hearing = _signals.heard(act, *numbers) if numbers else contextlib.nullcontext()
    with hearing, _signals.leaving(last):
        yield


def run(
    verb: Verb,
    module: Any,
    call: Call,
    began: float,
    log: Callable[[dict[str, Any], float | None, int, str], None],
    *,
    waits: bool,
) -> int:
    """Call a verb, and log when it begins to wait, or what it asks the server; return its exit code."""
    settings, values = call.settings, vars(call.args)
    with contextlib.ExitStack() as stack:
        if waits:
            # A quick verb ends before garbage matters (see scripts/agentbus); what is imported is none.
            gc.freeze()
            gc.enable()
            values["pid"] = os.getpid()
            # Verbs put the two ways to name flags together when they run.
            named = [*values.get("names", ()), *filter(None, [values.get("name")])]
            flags = named + values["flag"] if isinstance(values.get("flag"), list) else named
            log(values | ({"flag": flags} if flags else {}), None, 0, "began")
            stack.enter_context(noted(lambda code, outcome: log(values, began, code, outcome)))
        if settings.log_level == "debug":
            from agentbus.commands import _debug

            stack.enter_context(_debug.debugged(verb.name, settings))
        return int(module.run(call) or 0)
