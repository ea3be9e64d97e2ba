"""What only the nightly tier runs: variants of a behaviour that a test of each change shows already.

    @pytest.mark.parametrize("error", [KeyboardInterrupt, nightly(SystemExit)])
    @on_one_store

`tests/README.md` says which variants these are, and why.
"""

from __future__ import annotations

from typing import Any

import pytest


def nightly(*values: Any, id: str | None = None) -> Any:
    """Return a set of parameters that only the nightly tier runs."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)


def sampled(values: list[Any], every: int, first: int = 0) -> list[Any]:
    """Return the values, of which each change runs one in `every`, from `first` on."""
    return [
        value if number % every == first % every else nightly(value)
        for number, value in enumerate(values)
    ]


# For what is decided in Python, above the store, or takes the in-memory server long.
on_one_store = pytest.mark.parametrize("url", ["valkey", nightly("memory")], indirect=True)
