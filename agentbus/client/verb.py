"""One definition of a verb, for both buses.

A method of `Verbs` returns an operation. On a `Bus` the same method runs it and returns its
result; on an `AsyncBus` it returns an awaitable. Nothing is generated, and nothing is written twice.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

    from agentbus.client.aio import AsyncBus
    from agentbus.client.bus import Bus
    from agentbus.store.steps import Op

    P = ParamSpec("P")
    T = TypeVar("T")

    class verb(Generic[P, T]):  # noqa: N801
        """Defines a verb that has one result."""

        def __init__(self, define: Callable[Concatenate[Any, P], Op[T] | Patient[T]]) -> None: ...
        @overload
        def __get__(self, bus: Bus, owner: type) -> Callable[P, T]: ...
        @overload
        def __get__(self, bus: AsyncBus, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, bus: object, owner: type) -> Callable[P, Any]: ...
        def __get__(self, bus: object, owner: type) -> Any: ...

    class stream_verb(Generic[P, T]):  # noqa: N801
        """Defines a verb that is iterated over."""

        def __init__(self, define: Callable[Concatenate[Any, P], Emits[T]]) -> None: ...
        @overload
        def __get__(self, bus: Bus, owner: type) -> Callable[P, Iterator[T]]: ...
        @overload
        def __get__(self, bus: AsyncBus, owner: type) -> Callable[P, AsyncIterator[T]]: ...
        @overload
        def __get__(self, bus: object, owner: type) -> Callable[P, Any]: ...
        def __get__(self, bus: object, owner: type) -> Any: ...

    class Patient(Generic[T]):
        """An operation that outlives trouble of the server's for so many seconds."""

        op: Op[T]
        seconds: float

        def __init__(self, op: Op[T], seconds: float) -> None: ...

    class Emits(Patient[None], Generic[T]):
        """An operation that emits values of one type."""

else:

    class verb:  # noqa: N801
        """Defines a verb that has one result."""

        driver = "_run"

        def __init__(self, define):
            self.define = define

        def bind(self, bus_type):
            """Return the method of one of the two buses."""
            define, driver = self.define, getattr(bus_type, self.driver)

            def method(self, *args, **kwargs):
                return driver(self, define.__name__, define(self, *args, **kwargs))

            method.__name__ = define.__name__
            method.__qualname__ = f"{bus_type.__name__}.{define.__name__}"
            method.__doc__ = define.__doc__
            method.__wrapped__ = define
            return method

    class stream_verb(verb):  # noqa: N801
        """Defines a verb that is iterated over."""

        driver = "_iterate"

    class Patient:
        """An operation that outlives trouble of the server's for so many seconds."""

        __slots__ = ("op", "seconds")

        def __init__(self, op, seconds):
            self.op = op
            self.seconds = seconds

    Emits = Patient
