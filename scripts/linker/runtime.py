"""The beginning of each linked module: how it and the modules that are not linked get on with each other.

A class that is linked exists once: when its own module is imported after all, that gets the linked one.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

# Each class that is linked, and its own module. Filled in at the end of the linked module.
_CLASSES: dict[str, str] = {}
_VERBS: dict[str, Any] = {}


def _late(module: str, name: str) -> Any:
    """Import what is not linked, where it is used."""
    return getattr(__import__(module, fromlist=(name,)), name)


def _loaded(module: str, name: str) -> tuple[Any, ...]:
    """Return the type to test a value for; none while its module is not imported: then nothing is of it."""
    found = sys.modules.get(module)
    return () if found is None else (getattr(found, name),)


def _complete(value: object, name: str) -> Any:
    """Return an attribute of a value whose class was linked without what no linked code uses."""
    for each in type(value).__mro__:
        if each.__module__ in _CLASSES.values():
            __import__(each.__module__)
    return object.__getattribute__(value, name)


def _class(make: Any, name: str, *bases: Any, **options: Any) -> Any:
    """Make a class, or complete the linked one of this name and module, and return that."""
    made = _make(make, name, *bases, **options)
    if _CLASSES.get(name) != made.__module__ or made.__qualname__ != name:
        return made
    linked = globals()[name]
    for key, value in vars(made).items():
        if key[:2] != "__" and key not in vars(linked):
            setattr(linked, key, value)
    return linked


_make: Any = builtins.__build_class__
