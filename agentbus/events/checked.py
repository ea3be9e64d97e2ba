"""Column types that refuse what another program stored as another type, which SQLite allows."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from agentbus.core.errors import Unhealthy


class _Checked(sa.types.TypeDecorator[Any]):
    """A type whose values, read from the column `name`, are of the type `_kind`, or null."""

    cache_ok = True
    _kind: type = str

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        """Return the value. Raises `Unhealthy`."""
        if value is None or type(value) is self._kind:
            return value
        raise Unhealthy(
            f"the column {self.name!r} of the ledger holds {ascii(value)[:60]},"
            f" and should hold {'a text' if self._kind is str else 'a number'}",
            hint="another program wrote it: correct that row in the database",
        )


class CheckedText(_Checked):
    """Text that is text."""

    impl = sa.Text
    _kind = str


class CheckedNumber(_Checked):
    """Whole numbers that are whole numbers."""

    impl = sa.BigInteger
    _kind = int


def text(name: str) -> sa.types.TypeEngine[str]:
    """Return the type of a column of text; a PostgreSQL checks what is stored by itself."""
    return sa.Text().with_variant(CheckedText(name), "sqlite")


def number(name: str) -> sa.types.TypeEngine[int]:
    """Return the type of a column of whole numbers."""
    return sa.BigInteger().with_variant(CheckedNumber(name), "sqlite")
