"""Checks the combination of a call's options, as their verb declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from agentbus.commands._declare import Args, Verb


def check(verb: Verb, args: Args, action: str | None = None) -> None:
    """Raise `UsageError` for an option without its companion, or with one that it excludes.

    `action` is the requested action, if it is not the argument `action`.
    """
    given = {
        param.names[0]
        for param in verb.params
        if param.names and getattr(args, param.dest) != param.initial()
    }
    present = {*given, action or getattr(args, "action", "")}
    for option, others in verb.goes_with.items():
        if option in given and present.isdisjoint(others):
            raise UsageError(
                f"{option} goes with {' and '.join(others)} alone", hint="leave it out"
            )
    for option, others in verb.excludes.items():
        for other in others:
            if option in given and other in given:
                raise UsageError(f"{option} and {other} exclude each other", hint="choose one")
