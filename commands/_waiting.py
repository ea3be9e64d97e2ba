"""Runs a verb that waits, or logs each exchange, and writes its lines of the operations log."""

from __future__ import annotations

# The package `signal` wraps this module's constants in enumerations, which takes a fifth of a quick
# verb's time.
import _signal  # type: ignore[import-not-found]
import gc
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from agentbus.commands._declare import Call, Verb

    Last = Callable[[int, str], None]

_NAMES = {_signal.SIGTERM: "SIGTERM", _signal.SIGHUP: "SIGHUP"}
# Functions to call before the process exits at once; they write to the log.
_last_words: list[Last] = []


def leave(code: int, outcome: str) -> NoReturn:
    """Exit at once, after logging the outcome."""
    for last in _last_words:
        last(code, outcome)
    os._exit(code)


class LastWords:
    """Calls `last` with the exit code and outcome if a signal, or `leave`, ends this process.

    The signals are SIGTERM and SIGHUP. A handler that the verb installs itself takes precedence.
    """

    def __init__(self, last: Last) -> None:
        self._last = last
        self._numbers: list[int] = []

    def __enter__(self) -> None:
        for number in _NAMES:
            if _signal.getsignal(number) == _signal.SIG_DFL:
                self._numbers.append(number)
                _signal.signal(number, self._act)
        _last_words.append(self._last)

    def __exit__(self, *_: object) -> None:
        _last_words.remove(self._last)
        for number in self._numbers:
            _signal.signal(number, _signal.SIG_DFL)

    def _act(self, number: int, _frame: object) -> None:
        self._last(128 + number, f"ended by {_NAMES[number]}")
        _signal.signal(number, _signal.SIG_DFL)
        _signal.raise_signal(number)


def run(
    verb: Verb,
    module: Any,
    call: Call,
    began: float,
    log: Callable[[dict[str, Any], float | None, int, str], None],
    *,
    waits: bool,
) -> int:
    """Call a verb, logging the start of a wait or its exchanges; return the exit code."""
    if not waits:
        return _called(verb, module, call)
    values = vars(call.args)
    # The imported modules stay in memory, so collections need not search them.
    gc.freeze()
    values["pid"] = os.getpid()
    # A verb combines the two ways to name flags only when it runs.
    named = [*values.get("names", ()), *filter(None, [values.get("name")])]
    flags = named + values["flag"] if isinstance(values.get("flag"), list) else named
    with LastWords(lambda code, outcome: log(values, began, code, outcome)):
        log(values | ({"flag": flags} if flags else {}), None, 0, "began")
        return _called(verb, module, call)


def _called(verb: Verb, module: Any, call: Call) -> int:
    if call.settings.log_level != "debug":
        return int(module.run(call) or 0)
    from agentbus.commands import _debug

    with _debug.debugged(verb.name, call.settings):
        return int(module.run(call) or 0)
