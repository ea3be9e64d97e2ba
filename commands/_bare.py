"""Declares the actions of a verb, and lists them if the verb is called without an action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from agentbus.commands._declare import Param
from agentbus.commands._nearest import meant
from agentbus.commands._output import to_stderr
from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from agentbus.commands._declare import Verb


def actions(described: Mapping[str, str]) -> Param:
    """Declare the argument that names a verb's action; the usage of an action begins with its name."""
    names = tuple(dict.fromkeys(usage.partition(" ")[0] for usage in described))
    return Param("ACTION", "What to do.", required=True, choices=names, actions=described)


def actions_of(verb: Verb) -> Mapping[str, str]:
    """Return the usage and description of each action of a verb."""
    return next((param.actions for param in verb.params if param.actions), {})


def no_action(verb: Verb, within: str = "", *, json: bool, needs: str = "an action") -> UsageError:
    """List a verb's actions, or those of the action `within`, on stderr; return the error to raise."""
    chosen = {usage: said for usage, said in actions_of(verb).items() if usage.startswith(within)}
    what = f"{verb.name} {within}".strip()
    if json:
        return UsageError(f"{what} needs {needs}", hint=f"use {' | '.join(chosen)}")
    formatter = click.HelpFormatter(width=min(click.HelpFormatter().width, 80))
    (named, *_) = [param.metavar for param in verb.params if param.actions]
    formatter.write_usage(f"agentbus {what}", f"{named} ...")
    with formatter.section("Actions"):
        formatter.write_dl([*chosen.items()])
    to_stderr(formatter.getvalue())
    return UsageError(f"{what} needs {needs}", hint=f"see 'agentbus help {verb.name}'")


def unknown_action(verb: Verb, word: str, within: str = "") -> UsageError:
    """Return the error for an unknown action of a verb, or of its action `within`."""
    rests = [usage.removeprefix(within) for usage in actions_of(verb) if usage.startswith(within)]
    known = list(dict.fromkeys(rest.split()[0] for rest in rests))
    listed = ", ".join(known[:-1]) + f" or {known[-1]}"
    return UsageError(
        f"{f'{verb.name} {within}'.strip()} has no action {word!a}"
        f"{meant(word, known) or f': use {listed}'}",
        hint=f"see 'agentbus help {verb.name}'",
    )
