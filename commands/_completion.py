"""Completes words in shells: options, actions, and names from the bus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from agentbus.commands._bare import actions_of
from agentbus.commands._declare import SUMMARIES
from agentbus.commands._output import plain
from agentbus.commands._topics import TOPICS
from agentbus.core.names import shell_word
from agentbus.core.settings import variable

if TYPE_CHECKING:
    from agentbus.commands._declare import Param, Verb

    # Values, each with a description or None.
    Found = Iterable[tuple[str, str | None]]

VARIABLE = "_AGENTBUS_COMPLETE"
_ABOUT = 60

# Readline splits words at some characters, and replaces only the part after the last of them. The
# script passes the whole line, so that `shop:orders` is one word here.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value sign before kept=""
    local line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##*[[:space:]]}"

    response=$(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1" 2>/dev/null)
    [[ $word == --*=* ]] && word="${word#*=}"
    for sign in @ : =; do
        before="${word%%"${word##*"$sign"}"}"
        if [[ $word == *"$sign"* && $COMP_WORDBREAKS == *"$sign"* && ${#before} -gt ${#kept} ]]; then
            kept="$before"
        fi
    done
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == 'dir' ]]; then
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("${value#"$kept"}")
        fi
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Completion of whole words in bash."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = variable("COMP_WORDS") or ""
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() or not words else words.pop()
        return words[1:], incomplete


add_completion_class(Bash)


def complete(root: click.Group) -> int:
    """Print completions of the shell's line; none after a mistake or without a server."""
    # Hide all errors, which would be printed into the line that the user types.
    with contextlib.suppress(Exception, SystemExit):
        root.main([], prog_name="agentbus", complete_var=VARIABLE, standalone_mode=False)
    return 0


def items(param: Param, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
    """Return the completions of a parameter's value."""
    completions = [
        CompletionItem(word, help=about)
        for word, about in _words(param, ctx)
        if word.startswith(incomplete)
    ]
    if completions:
        return completions
    if param.values in ("file", "dir"):
        return [CompletionItem(incomplete, type=param.values)]
    if param.values in ("", "subject"):
        return []
    # Help and usage errors need no bus, which takes longer to import than everything else for them.
    from agentbus.commands._completion_values import MOST, on_the_bus

    several = param.values == "tag" or (param.values == "topic" and param.many)
    before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
    return [
        CompletionItem(f"{before}{comma}{value}", help=about and plain(about)[:_ABOUT])
        for value, about in on_the_bus(param.values, ctx, _given(ctx))
        # Other agents choose these names: omit a name that a shell would not read as one word.
        if value.startswith(last) and value == shell_word(value) and value[0] != "-"
    ][:MOST]


def _words(param: Param, ctx: click.Context) -> Found:
    """Return the words that a parameter accepts on any bus."""
    if param.values == "subject":
        return [*SUMMARIES.items(), *((name, topic.summary) for name, topic in TOPICS.items())]
    if ctx.params.get("words"):
        return []
    verb = _verb(ctx)
    if verb is not None and param.dest == "words" and not param.actions:
        usages = [(usage.split(), about) for usage, about in actions_of(verb).items()]
        return [
            (usage[1], about)
            for usage, about in usages
            if usage[0] == ctx.params.get("action") and len(usage) > 1 and usage[1].islower()
        ]
    if param.actions:
        return {usage.split()[0]: about for usage, about in param.actions.items()}.items()
    return [(choice, None) for choice in param.choices]


def _given(ctx: click.Context) -> dict[str, Any]:
    """Return the values given on the line so far."""
    # While an option's value is completed, click keeps the arguments before it in `args`.
    verb = _verb(ctx)
    arguments = [] if verb is None else [param.dest for param in verb.params if not param.names]
    return {**ctx.params, **dict(zip(arguments, ctx.args, strict=False))}


def _verb(ctx: click.Context) -> Verb | None:
    """Return the line's verb, if it is already given."""
    return getattr(ctx.command, "verb", None)
