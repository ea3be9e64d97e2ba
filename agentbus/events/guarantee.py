"""Delivery guarantees of events."""

from __future__ import annotations

from enum import Enum


class Guarantee(Enum):
    """The number of times that an event takes effect, even if processes are killed."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"
