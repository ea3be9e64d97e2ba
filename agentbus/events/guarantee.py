"""What is promised of an event: how often its handler acts on it."""

from __future__ import annotations

from enum import Enum


class Guarantee(Enum):
    """How often a handler acts on an event, whatever is killed meanwhile."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"
