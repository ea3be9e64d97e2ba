"""Declares consumers: a handler, its stream, and the name that identifies it forever."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import ConfigError, UsageError
from agentbus.events.guarantee import Guarantee
from agentbus.events.leases import READER, RELAY
from agentbus.workers.executors import called

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import TypeVar

    Handler = TypeVar("Handler", bound=Callable[..., Any])
    Value = TypeVar("Value")

ATTEMPTS = 4
BLOCK, PARK = "block", "park"
# The name of modules that are loaded from a package, such as `shop/mail/internal/`.
PLACES = "events_pipeline_consumers"
# A call of a function of these kinds does not run its body.
_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_PLAIN = "give a plain function, without async and yield"


@dataclass(frozen=True, slots=True)
class Context:
    """The optional second argument of a handler: its consumer, and the attempt number, from 1.

    `attempt` counts across restarts if failed events are parked, otherwise since the process started.
    """

    consumer: str
    stream: str
    attempt: int
    _beat: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def beat(self) -> None:
        """Send a heartbeat, from a handler that may exceed the supervisor's heartbeat timeout.

        A supervised process without heartbeats is killed. Without a supervisor this does nothing.
        """
        if self._beat is not None:
            self._beat()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared consumer; `attempts` is the number of attempts before an event is parked."""

    stream: str
    name: str
    handler: Callable[..., Any]
    guarantee: Guarantee
    on_error: str
    attempts: int
    batch: bool
    with_context: bool
    app: str | None = None

    def of(self, app: str | None) -> Declaration:
        """Return the consumer of an application, whose name is `{app}.{name}`; itself without one."""
        if app is None or self.app is not None:
            return self
        return replace(self, name=names.name("consumer", f"{app}.{self.name}"), app=app)

    def call(self, what: Any, context: Context, session: Any = None) -> None:
        """Call the handler with its arguments. Raises `ConfigError` if that runs nothing."""
        given = [what]
        if self.with_context:
            given.append(context)
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            given.append(session)
        returned = self.handler(*given)
        if returned is not None and _is_unrun(returned):
            if inspect.iscoroutine(returned):
                # Close the coroutine, so that Python does not also warn about it.
                returned.close()
            raise ConfigError(
                f"the handler of {self.name!r} returned a {type(returned).__name__}, which nothing runs",
                hint=_PLAIN,
            )


# Public name of the class.
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
    """Declare a function as a stream's consumer, and return the function unchanged.

    With the guarantee exactly-once it takes `(event, session)` or `(event, context, session)`,
    otherwise `(event)` or `(event, context)`; with `batch`, a list of events instead of one. The
    ledger knows the consumer by `name`: under another name it starts from the first event. A
    failing event is retried until it succeeds (`block`), or parked after `attempts` attempts
    (`park`). Raises `ConfigError`, `InvalidName`.
    """

    def declare(handler: Handler) -> Handler:
        declaration = register(
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
        _REGISTERED[name] = declaration
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
    """Return a declared consumer as `consumer` does, without adding it to `registered`."""
    names.name("stream", stream)
    names.name("consumer", name)
    if name == RELAY:
        raise ConfigError(f"a consumer cannot be named {RELAY!r}", hint="it is the relay's role")
    if name.startswith(READER):
        raise ConfigError(
            f"a consumer cannot be named {name[:60]!a}",
            hint=f"roles that begin with {READER!r} are those of readers such as archives",
        )
    if not isinstance(guarantee, Guarantee):
        raise ConfigError(f"{guarantee!r} is not a guarantee", hint="give one of Guarantee")
    if on_error not in (BLOCK, PARK):
        raise ConfigError(f"on_error is {on_error!r}", hint=f"use {BLOCK!r} or {PARK!r}")
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ConfigError(f"attempts are {attempts!r}", hint="give a whole number, at least 1")
    if batch and guarantee is not Guarantee.EXACTLY_ONCE:
        raise ConfigError(
            "only an exactly-once consumer can take events in batches",
            hint="leave out batch, or the guarantee",
        )
    if not callable(handler) or any(is_lazy(called(handler)) for is_lazy in _LAZY):
        raise ConfigError(f"the handler of {name!r} is not a plain function", hint=_PLAIN)
    plain = ["event", "session"] if guarantee is Guarantee.EXACTLY_ONCE else ["event"]
    taken = _positional(handler)
    if taken not in (len(plain), len(plain) + 1):
        wanted = f"({', '.join(plain)}) or ({', '.join(['event', 'context', *plain[1:]])})"
        raise ConfigError(
            f"the handler of {name!r} takes {taken} arguments", hint=f"declare it as {wanted}"
        )
    return Declaration(
        stream, name, handler, guarantee, on_error, attempts, batch, taken > len(plain)
    )


def registered(app: str | None = None) -> dict[str, Declaration]:
    """Return all declared consumers, by name; of an application by `{app}.{name}`."""
    declared = (each.of(app) for each in _REGISTERED.values())
    return {each.name: each for each in declared}


def load(module: str) -> None:
    """Import a module that declares consumers or schemas; of a package, also modules `PLACES`.

    Raises `UsageError`.
    """
    for place in _places(_imported(module)):
        _imported(place)


def _imported(module: str) -> ModuleType:
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the module {module!r} cannot be loaded ({type(error).__name__}: {error})",
            hint="correct it, or start this where it can be found",
        ) from error


def _places(package: ModuleType) -> list[str]:
    """Return the modules of a package, at any depth, whose name marks declarations of consumers."""
    modules = set()
    for root in getattr(package, "__path__", ()):
        for folder, inside, files in os.walk(root):
            # Visit only directories that can be imported.
            inside[:] = [each for each in inside if each.isidentifier() and each != "__pycache__"]
            if f"{PLACES}.py" in files:
                parts = [] if folder == root else os.path.relpath(folder, root).split(os.sep)
                modules.add(".".join((package.__name__, *parts, PLACES)))
    return sorted(modules)


def chosen(
    consumers: Mapping[str, Value], module: str, only: str | None, app: str | None = None
) -> dict[str, Value]:
    """Return the consumers of a module, all or `only` one, also without its app. Raises `UsageError`."""
    if not consumers:
        raise UsageError(
            f"the module {module!r} declares no consumer",
            hint=f"declare it with @consumer, in a package in modules named {PLACES}",
        )
    if only is None:
        return dict(consumers)
    if only not in consumers and app is not None:
        only = f"{app}.{only}"
    if only not in consumers:
        raise UsageError(
            f"no consumer is named {only!r}", hint=f"there are {', '.join(sorted(consumers))}"
        )
    return {only: consumers[only]}


def registration(of: str | Callable[..., Any]) -> Declaration:
    """Return a consumer by its name or its handler. Raises `ConfigError` if none is declared."""
    for each in _REGISTERED.values():
        if of in (each.name, each.handler):
            return each
    raise ConfigError(
        f"{of!r} is not a consumer", hint="declare it with @consumer, and import its module"
    )


def _is_unrun(returned: object) -> bool:
    return (
        inspect.isawaitable(returned)
        or inspect.isgenerator(returned)
        or inspect.isasyncgen(returned)
    )


def _home(handler: Any) -> str:
    return f"{handler.__module__}.{getattr(handler, '__qualname__', type(handler).__name__)}"


def _positional(handler: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        parameter.kind in kinds and parameter.default is inspect.Parameter.empty
        for parameter in inspect.signature(handler).parameters.values()
    )
