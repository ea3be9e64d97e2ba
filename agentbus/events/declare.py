"""Consumers as they are declared: a handler, its stream, and the name that is its identity for ever."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import ConfigError
from agentbus.events.guarantee import Guarantee
from agentbus.events.leases import READER, RELAY

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Handler = TypeVar("Handler", bound=Callable[..., Any])

ATTEMPTS = 4
BLOCK, PARK = "block", "park"


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may know beside its event: which consumer it is, and the attempt's number, from 1.

    `attempt` counts across restarts where failed events are parked, and since the start elsewhere.
    """

    consumer: str
    stream: str
    attempt: int
    _beat: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def beat(self) -> None:
        """Say that this handler goes on: to be called by one that may outlast the heartbeat timeout.

        Under a supervisor, a worker that says nothing for so long is killed. Elsewhere it does nothing.
        """
        if self._beat is not None:
            self._beat()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A consumer as it was declared; `attempts` is how many runs an event gets before it is parked."""

    stream: str
    name: str
    handler: Callable[..., Any]
    guarantee: Guarantee
    on_error: str
    attempts: int
    batch: bool
    with_context: bool

    def call(self, what: Any, context: Context, session: Any = None) -> None:
        """Call the handler with what it takes."""
        given = [what]
        if self.with_context:
            given.append(context)
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            given.append(session)
        self.handler(*given)

    def beating(self, beat: Callable[[], None]) -> Declaration:
        """Return the same, with `beat` as what a handler that takes a context says its life by."""
        if not self.with_context:
            return self
        handler = self.handler

        def call(what: Any, context: Context, *session: Any) -> None:
            handler(what, replace(context, _beat=beat), *session)

        return replace(self, handler=call)


# The public name.
Registration = Declaration

_REGISTERED: dict[str, Declaration] = {}


def consumer(
    stream: str,
    *,
    name: str,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    on_error: str = BLOCK,
    attempts: int = ATTEMPTS,
    batch: bool = False,
) -> Callable[[Handler], Handler]:
    """Declare a function as the consumer of a stream; it stays what it is, and can be called in tests.

    Exactly once it takes `(event, session)` or `(event, context, session)`, otherwise `(event)` or
    `(event, context)`; with `batch` a list of events. `name` is under which the ledger knows what it did:
    under another name it would begin anew. A failing event is tried again until it succeeds (`block`), or
    put aside after so many attempts (`park`). Raises `ConfigError`, `InvalidName`.
    """

    def declare(handler: Handler) -> Handler:
        made = register(
            handler,
            stream,
            name=name,
            guarantee=guarantee,
            on_error=on_error,
            attempts=attempts,
            batch=batch,
        )
        known = _REGISTERED.get(name)
        if known is not None and _home(known.handler) != _home(handler):
            raise ConfigError(
                f"two consumers are named {name!r}: {_home(known.handler)} and {_home(handler)}",
                hint="give the newer one another name",
            )
        _REGISTERED[name] = made
        return handler

    return declare


def register(
    handler: Callable[..., Any],
    stream: str,
    *,
    name: str,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    on_error: str = BLOCK,
    attempts: int = ATTEMPTS,
    batch: bool = False,
) -> Declaration:
    """Return a registration without making it known; otherwise as `consumer`."""
    names.name("stream", stream)
    names.name("consumer", name)
    if name == RELAY:
        raise ConfigError(f"no consumer can be named {RELAY!r}", hint="it is the relay's own role")
    if name.startswith(READER):
        raise ConfigError(
            f"no consumer can be named {name[:60]!a}",
            hint=f"{READER!r} begins the roles of readers such as archives",
        )
    if not isinstance(guarantee, Guarantee):
        raise ConfigError(f"{guarantee!r} is no guarantee", hint="give one of Guarantee")
    if on_error not in (BLOCK, PARK):
        raise ConfigError(f"on_error is {on_error!r}", hint=f"use {BLOCK!r} or {PARK!r}")
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ConfigError(f"attempts are {attempts!r}", hint="give a number of runs, at least 1")
    if batch and guarantee is not Guarantee.EXACTLY_ONCE:
        raise ConfigError(
            "only a consumer that acts exactly once takes events in batches",
            hint="leave out batch, or the guarantee",
        )
    if not callable(handler) or inspect.iscoroutinefunction(handler):
        raise ConfigError(
            f"the handler of {name!r} is no plain function", hint="give one without async"
        )
    plain = ["event", "session"] if guarantee is Guarantee.EXACTLY_ONCE else ["event"]
    taken = _positional(handler)
    if taken not in (len(plain), len(plain) + 1):
        wanted = f"({', '.join(plain)}) or ({', '.join(['event', 'context', *plain[1:]])})"
        raise ConfigError(
            f"the handler of {name!r} takes {taken} arguments", hint=f"have it take {wanted}"
        )
    return Declaration(
        stream, name, handler, guarantee, on_error, attempts, batch, taken > len(plain)
    )


def registered() -> dict[str, Declaration]:
    """Return all consumers that were declared, by name."""
    return dict(_REGISTERED)


def registration(of: str | Callable[..., Any]) -> Declaration:
    """Return a consumer by its name or its handler. Raises `ConfigError` if none was declared."""
    for each in _REGISTERED.values():
        if of in (each.name, each.handler):
            return each
    raise ConfigError(
        f"{of!r} is no consumer", hint="declare it with @consumer, and import its module"
    )


def _home(handler: Any) -> str:
    return f"{handler.__module__}.{getattr(handler, '__qualname__', type(handler).__name__)}"


def _positional(handler: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        parameter.kind in kinds and parameter.default is inspect.Parameter.empty
        for parameter in inspect.signature(handler).parameters.values()
    )
