"""Frozen, slotted values that do not import `dataclasses`.

They behave like frozen dataclasses (`dataclasses.asdict`, `replace` and `fields` accept them), but
`dataclasses` is imported only when one of these functions is used: the import takes longer than a whole
`agentbus speak`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform(**_options):
        """Do nothing; a stand-in for `typing.dataclass_transform`."""
        return lambda cls: cls


_REQUIRED = object()


class _RecordType(type):
    """Turns annotations into slots and class-level defaults into constructor defaults."""

    if TYPE_CHECKING:
        # The name of each field, its default, and the setter of its slot.
        _fields: tuple[tuple[str, Any, Callable[[object, object], None]], ...]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _RecordType:
        own = namespace.get("__annotations__", {})
        inherited: dict[str, Any] = {}
        for base in bases:
            inherited.update(getattr(base, "_defaults", {}))
        defaults = {**inherited, **{key: namespace.pop(key, _REQUIRED) for key in own}}
        namespace["__slots__"] = tuple(own)
        namespace["_defaults"] = defaults
        # A field with a leading underscore is stored, but is not part of the value.
        namespace["__match_args__"] = tuple(key for key in defaults if key[0] != "_")
        cls = super().__new__(mcs, name, bases, namespace)
        # Setters of the slots are twice as fast as setting attributes by name.
        cls._fields = tuple(
            (key, default, getattr(cls, key).__set__) for key, default in defaults.items()
        )
        return cls


class _LazyFields:
    """Builds `__dataclass_fields__` on first use."""

    def __get__(self, instance: object, owner: type[Record]) -> dict[str, Any]:
        import dataclasses

        shadow = dataclasses.make_dataclass(
            owner.__name__,
            [
                (key, "object")
                if default is _REQUIRED
                else (key, "object", dataclasses.field(default=default))
                for key, default in owner._defaults.items()
                if key[0] != "_"
            ],
            frozen=True,
        )
        fields: dict[str, Any] = vars(shadow)["__dataclass_fields__"]
        return fields


@dataclass_transform(frozen_default=True)
class Record(metaclass=_RecordType):
    """An immutable value, compared by its fields; hashable if they are."""

    if TYPE_CHECKING:
        _defaults: dict[str, Any]
        __match_args__: tuple[str, ...]
    __dataclass_fields__ = _LazyFields()

    def __init__(self, *args: object, **kwargs: object) -> None:
        fields = type(self)._fields
        if len(args) > len(fields):
            raise TypeError(
                f"{type(self).__name__} takes {len(fields)} values and was given {len(args)}"
            )
        for (name, _, put), value in zip(fields, args, strict=False):
            if name in kwargs:
                raise TypeError(f"{type(self).__name__} was given {name!r} twice")
            put(self, value)
        for name, default, put in fields[len(args) :]:
            value = kwargs.pop(name, default) if kwargs else default
            if value is _REQUIRED:
                raise TypeError(f"{type(self).__name__} needs {name!r}")
            put(self, value)
        for name in kwargs:
            raise TypeError(f"{type(self).__name__} has no field {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be deleted")

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({inside})"

    def __replace__(self, **changes: object) -> Self:
        """Return a copy with some values changed, for `copy.replace`."""
        return type(self)(
            **{**dict(zip(self.__match_args__, self._values(), strict=True)), **changes}
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._values()
