"""Column types that reject values of another type, which other programs may store in SQLite."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from agentbus.core.errors import Unhealthy


class _Checked(sa.types.TypeDecorator[Any]):
    """A type that accepts only values of the type `_kind`, or null, from the column `name`."""

    cache_ok = True
    _kind: type = str

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        """Return a stored value. Raises `Unhealthy` if it has another type."""
        if value is None or type(value) is self._kind:
            return value
        raise Unhealthy(
            f"the column {self.name!r} of the ledger holds {ascii(value)[:60]},"
            f" and should hold {'a text' if self._kind is str else 'a number'}",
            hint="another program wrote it: correct that row in the database",
        )


class CheckedText(_Checked):
    """A text column whose values must be text."""

    impl = sa.Text
    _kind = str


class CheckedNumber(_Checked):
    """An integer column whose values must be integers."""

    impl = sa.BigInteger
    _kind = int


def text(name: str) -> sa.types.TypeEngine[str]:
    """Return the type of a text column; PostgreSQL checks stored values itself."""
    return sa.Text().with_variant(CheckedText(name), "sqlite")


def number(name: str) -> sa.types.TypeEngine[int]:
    """Return the type of an integer column."""
    return sa.BigInteger().with_variant(CheckedNumber(name), "sqlite")
