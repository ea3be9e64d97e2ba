"""Common code of all kinds of `work`: signals, pauses, webhooks, and loading Python objects."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentbus.client import preload
from agentbus.commands import _signals, _waiting
from agentbus.commands._output import to_stderr
from agentbus.commands.pause import named
from agentbus.core.errors import TimedOut, UsageError
from agentbus.core.names import word
from agentbus.queues.notify import WEBHOOKS
from agentbus.workers.webhooks import beside, handler

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.commands._program import Program
    from agentbus.core.signals import Stoppable
    from agentbus.workers.webhooks import WebhooksSent

_INTERRUPTED = 130


@contextlib.contextmanager
def until_told(
    worker: Stoppable, program: Program | None, grace: float, limit: float | None
) -> Iterator[list[int]]:
    """Stop the worker at a signal, within `grace` seconds; at a second signal, at once.

    The worker stops by itself after `limit` seconds; running tasks then have the same grace.
    """
    # Load these modules now: handlers may fork.
    preload.load()
    told: list[int] = []
    timers: list[threading.Timer] = []

    def later(seconds: float, act: Callable[..., None], *args: float) -> None:
        timers.append(threading.Timer(min(seconds, threading.TIMEOUT_MAX), act, args))
        timers[-1].daemon = True
        timers[-1].start()

    def stop(number: int, _frame: object) -> None:
        again = bool(told)
        told.append(number)
        worker.stop()
        code = _INTERRUPTED if signal.SIGINT in told else 1
        if program is not None:
            program.stop(0.0 if again else grace)
        elif again:
            to_stderr(
                "agentbus: ended at once; tasks in hand, if any, are given to other workers\n"
            )
            _waiting.leave(code, "ended at once by a second signal")
        else:
            later(grace, _leave, code)

    if limit is not None and program is not None:
        later(limit, program.stop, grace)
    elif limit is not None:
        later(limit + grace, _leave, TimedOut.exit_code)
    with _signals.heard(stop, *_signals.ENDING, signal.SIGHUP):
        try:
            yield told
        finally:
            for timer in timers:
                timer.cancel()


def tell_of_pauses(call: Call, takes: Callable[[str], bool]) -> None:
    """Warn that this worker is paused, since its queue would otherwise appear to be empty."""
    for order in call.bus.paused():
        concerned = order.name == call.bus.agent
        if order.kind == "queue":
            concerned = takes(order.name or "")
        if concerned and order.kind in ("queue", "agent"):
            by = f" by {word(order.by)}" if order.by else ""
            why = f": {order.why}" if order.why else ""
            call.out.warn(f"{named(order.kind, order.name)} is paused{by}{why}; it waits")


def webhooks(
    call: Call, drain: Callable[[], bool]
) -> contextlib.AbstractContextManager[WebhooksSent | None]:
    """Send webhooks while the worker runs, if enabled and not taken by this worker itself."""
    if not call.settings.webhooks:
        return contextlib.nullcontext()
    if call.args.queue == WEBHOOKS:
        # This worker sends the webhooks itself, so start no second one. Check the secret before
        # taking a task.
        handler(call.settings)
        return contextlib.nullcontext()
    return beside(call.bus, drain=drain)


def loaded(path: str, what: str) -> Any:
    """Import `module:name`, also from the current directory."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UsageError(f"{path!r} names no {what}", hint="write it as module:function")
    sys.path.insert(0, os.getcwd())
    try:
        target: Any = import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except Exception as error:
        raise UsageError(
            f"the {what} {path!r} cannot be loaded ({type(error).__name__}: {error})",
            hint="correct it, or start this where its module can be found",
        ) from error
    return target


def _leave(code: int) -> None:
    # A Python function cannot be interrupted from outside, so its task is not acknowledged.
    to_stderr("agentbus: the handler did not end in time; another worker will take its task\n")
    _waiting.leave(code, "the handler did not end in time")
