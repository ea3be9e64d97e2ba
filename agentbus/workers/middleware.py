"""Middleware: functions around a worker's handler, for needs of every task, such as timing or a session.

Each middleware gets the delivery and `call_next`, which runs the rest: further middleware, and finally the
handler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from agentbus.core.errors import UsageError
from agentbus.workers.executors import is_async

if TYPE_CHECKING:
    Handler: TypeAlias = Callable[[Any], Any]
    Middleware: TypeAlias = Callable[[Any, Handler], Any]


def around(handler: Handler, middleware: Sequence[Middleware]) -> Handler:
    """Return a handler that runs in `middleware`, of which the first is the outermost.

    Raises `UsageError` for a middleware that is not callable, or that is asynchronous if the handler is
    not.
    """
    if not isinstance(middleware, (list, tuple)):
        raise UsageError(f"the middleware is {middleware!r}", hint="give a list of functions")
    awaited = is_async(handler)
    for function in middleware:
        if not callable(function):
            raise UsageError(f"a middleware is {function!r}", hint="give a function")
        if is_async(function) is not awaited:
            raise UsageError(
                f"the middleware {_name(function)} is {'not ' if awaited else ''}a coroutine function,"
                f" and the handler {_name(handler)} is {'function' if awaited else 'not'}",
                hint=f"write it as '{'async ' if awaited else ''}def'",
            )
    for function in reversed(middleware):
        handler = _awaited(function, handler) if awaited else _called(function, handler)
    return handler


def _called(function: Middleware, call_next: Handler) -> Handler:
    def handle(delivery: Any) -> Any:
        return function(delivery, call_next)

    return handle


def _awaited(function: Middleware, call_next: Handler) -> Handler:
    async def handle(delivery: Any) -> Any:
        return await function(delivery, call_next)

    return handle


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
