"""One definition of a verb for the blocking and the asynchronous bus.

A method marked with `verb` or `stream_verb` returns an operation. A class that derives from `Blocking`
or `Awaiting` turns these methods into ones that run the operation on the bus.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from inspect import signature
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeAlias,
    overload,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from agentbus.store.steps import Op

    P = ParamSpec("P")
    T = TypeVar("T")
    B = TypeVar("B")
    A = TypeVar("A")
    BusT_co = TypeVar("BusT_co", covariant=True, default="Blocking")
    Sync: TypeAlias = "Blocking | OnBus[Blocking]"
    Async: TypeAlias = "Awaiting | OnBus[Awaiting]"

    class verb(Generic[P, T]):  # noqa: N801
        """Marks a method that returns an operation with one result."""

        def __init__(self, define: Callable[Concatenate[Any, P], Op[T] | Patient[T]]) -> None: ...
        @overload
        def __get__(self: verb[P, PerBus[B, A]], on: Sync, owner: type) -> Callable[P, B]: ...
        @overload
        def __get__(
            self: verb[P, PerBus[B, A]], on: Async, owner: type
        ) -> Callable[P, Coroutine[Any, Any, A]]: ...
        @overload
        def __get__(self, on: Sync, owner: type) -> Callable[P, T]: ...
        @overload
        def __get__(self, on: Async, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, on: object, owner: type) -> Callable[..., Any]: ...
        def __get__(self, on: object, owner: type) -> Any: ...
        def bind(self, owner: type) -> Any: ...

    class stream_verb(Generic[P, T]):  # noqa: N801
        """Marks a method that returns an operation whose values are iterated."""

        def __init__(self, define: Callable[Concatenate[Any, P], Emits[T]]) -> None: ...
        @overload
        def __get__(self, on: Sync, owner: type) -> Callable[P, Generator[T, None, None]]: ...
        @overload
        def __get__(self, on: Async, owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
        @overload
        def __get__(self, on: object, owner: type) -> Callable[..., Any]: ...
        def __get__(self, on: object, owner: type) -> Any: ...

    class PerBus(Generic[B, A]):
        """The type of a result that is a `B` on a `Bus` and an `A` on an `AsyncBus`."""

    class Patient(Generic[T]):
        """An operation that waits out a server failure for up to `seconds`."""

        op: Op[T]
        seconds: float

        def __init__(self, op: Op[T], seconds: float) -> None: ...

    class Emits(Patient[None], Generic[T]):
        """An operation that emits values of one type."""

else:
    from typing import TypeVar

    BusT_co = TypeVar("BusT_co", covariant=True)

    class verb:  # noqa: N801
        """Marks a method that returns an operation with one result."""

        def __init__(self, define):
            self.define = define

        def bind(self, owner):
            """Return the method of `owner` that runs the operation."""
            define = self.define
            name = define.__name__

            def method(self, *args, **kwargs):
                return self._run(name, define(self, *args, **kwargs))

            return self._describe(method, owner, owner._returns)

        def _describe(self, method, owner, returns):
            define = self.define
            method.__name__ = define.__name__
            method.__qualname__ = f"{owner.__name__}.{define.__name__}"
            method.__module__ = define.__module__
            method.__doc__ = define.__doc__
            method.__wrapped__ = _Described(self, returns)
            return method

    class stream_verb(verb):  # noqa: N801
        """Marks a method that returns an operation whose values are iterated."""

        def bind(self, owner):
            """Return the method of `owner` that iterates over the operation."""
            define = self.define
            name = define.__name__

            def method(self, *args, **kwargs):
                return self._iterate(name, define(self, *args, **kwargs))

            return self._describe(method, owner, owner._yields)

    class _Described:
        """Show `inspect` the source of a bound verb, and the signature for callers."""

        __slots__ = ("_returns", "verb")

        def __init__(self, verb, returns):
            self.verb = verb
            self._returns = returns

        @property
        def __wrapped__(self):
            return self.verb.define

        @property
        def __signature__(self):
            defined = signature(self.verb.define)
            # On a bus, `Op[str]` becomes `str`, and `PerBus[X, Y]` becomes X or Y.
            result = str(defined.return_annotation).partition("[")[2][:-1]
            if result.startswith("PerBus["):
                pair = result.removeprefix("PerBus[").removesuffix("]").split(", ")
                result = pair[self._returns != Blocking._returns]
            return defined.replace(return_annotation=self._returns.format(result))

    class Patient:
        """An operation that waits out a server failure for up to `seconds`."""

        __slots__ = ("op", "seconds")

        def __init__(self, op, seconds):
            self.op = op
            self.seconds = seconds

    Emits = Patient


class _Binding:
    """Binds all verbs of a class, including inherited ones, when the class is created."""

    __slots__ = ()
    _returns = "{}"
    # Use generators, so that a loop that ends early can close them.
    _yields = "Generator[{}, None, None]"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        names = set()
        for kind in cls.__mro__:
            for name, attribute in [*vars(kind).items()]:
                if name in names:
                    continue
                names.add(name)
                described = getattr(attribute, "__wrapped__", None)
                definition = getattr(described, "verb", attribute)
                if isinstance(definition, verb):
                    setattr(cls, name, definition.bind(cls))


class Blocking(_Binding):
    """Marks a class whose verbs block and return their results."""

    __slots__ = ()


class Awaiting(_Binding):
    """Marks a class whose verbs are awaited."""

    __slots__ = ()
    _returns = "Coroutine[Any, Any, {}]"
    _yields = "AsyncGenerator[{}, None]"


class OnBus(_Binding, Generic[BusT_co]):
    """An object whose verbs run on its bus: they block, or are awaited, like those of the bus."""

    __slots__ = ()
    if TYPE_CHECKING:
        _run: Callable[..., Any]
        _iterate: Callable[..., Any]
