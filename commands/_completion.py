"""Completes words in shells: options, actions, and names on the bus."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from agentbus.admin import projects
from agentbus.client.bus import Bus
from agentbus.commands._bare import actions_of
from agentbus.commands._declare import VERBS, module
from agentbus.commands._output import plain
from agentbus.commands._topics import TOPICS
from agentbus.core.errors import BackendUnavailable
from agentbus.core.names import shell_word
from agentbus.core.settings import resolve, variable
from agentbus.tasks import Schedules
from agentbus.tasks.flows import Flows

if TYPE_CHECKING:
    from agentbus.commands._declare import Param, Verb

    # Values, each with a description or None.
    Found = Iterable[tuple[str, str | None]]

VARIABLE = "_AGENTBUS_COMPLETE"
# Somebody waits at the shell: seconds for the server, and for everything.
_DEADLINE = 0.5
_PATIENCE = 1.0
_OFFERED = 200
_ABOUT = 60
# Keys that are examined for projects, which takes about 50 ms.
_EXAMINED = 100_000

# Readline breaks words at some characters, and replaces only what follows the last of them. The whole
# line is handed over, so that `shop:orders` is one word here.
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
    """Completion in bash, of whole words."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = variable("COMP_WORDS") or ""
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() or not words else words.pop()
        return words[1:], incomplete


add_completion_class(Bash)


def complete(root: click.Group) -> int:
    """Print what may complete the shell's line; after a mistake, or without a server, nothing."""
    # Whatever went wrong, an error would be printed into the line that somebody types.
    with contextlib.suppress(Exception, SystemExit):
        root.main([], prog_name="agentbus", complete_var=VARIABLE, standalone_mode=False)
    return 0


def items(param: Param, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
    """Return what may complete a parameter's value."""
    found = [
        CompletionItem(word, help=about)
        for word, about in _words(param, ctx)
        if word.startswith(incomplete)
    ]
    if found:
        return found
    if param.values in ("file", "dir"):
        return [CompletionItem(incomplete, type=param.values)]
    if param.values not in _VALUES:
        return []
    several = param.values == "tag" or (param.values == "topic" and param.many)
    before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
    return [
        CompletionItem(f"{before}{comma}{value}", help=about and plain(about)[:_ABOUT])
        for value, about in _on_the_bus(param.values, ctx)
        # Other agents choose these names: one that a shell would not take as a word is not offered.
        if value.startswith(last) and value == shell_word(value) and value[0] != "-"
    ][:_OFFERED]


def _words(param: Param, ctx: click.Context) -> Found:
    """Return the words that a parameter takes on any bus."""
    if param.values == "subject":
        verbs = [(name, module(name).VERB.summary) for name in VERBS]
        return [*verbs, *((name, topic.summary) for name, topic in TOPICS.items())]
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


def _on_the_bus(kind: str, ctx: click.Context) -> list[tuple[str, str | None]]:
    """Return the values of a kind that are on the bus, if it answers in time."""
    found: list[tuple[str, str | None]] = []

    def ask() -> None:
        with contextlib.suppress(Exception), _bus(ctx) as bus:
            found.extend(_VALUES[kind](bus, _given(ctx)))

    # In a thread, because nothing else ends the look-up of a host's name.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    return [] if asking.is_alive() else found


def _given(ctx: click.Context) -> dict[str, Any]:
    """Return what the line has given so far."""
    # While an option's value is completed, click leaves the arguments before it in `args`.
    verb = _verb(ctx)
    arguments = [] if verb is None else [param.dest for param in verb.params if not param.names]
    return {**ctx.params, **dict(zip(arguments, ctx.args, strict=False))}


def _verb(ctx: click.Context) -> Verb | None:
    """Return the line's verb, once it is there."""
    return getattr(ctx.command, "verb", None)


def _bus(ctx: click.Context) -> Bus:
    """Return the bus of the line's settings; never starts the embedded server."""
    above = {} if ctx.parent is None else ctx.parent.params
    flags: dict[str, Any] = {
        name: ctx.params.get(name) or above.get(name)
        for name in ("agent", "project", "url", "config")
    }
    settings = resolve({**flags, "deadline": _DEADLINE})
    if settings.url is not None and settings.url.startswith("memory:"):
        raise BackendUnavailable("another process's memory cannot be read")
    bus = Bus(settings)
    bus.backend.revive = None
    return bus


def _named(names: Iterable[str]) -> Found:
    return [(name, None) for name in sorted(set(names))]


def _letters(bus: Bus, given: dict[str, Any]) -> Found:
    found = bus.queue(given["queue"]).dead_letters(given["group"] or "default", limit=_OFFERED)
    return [(letter.id, letter.error) for letter in found]


def _projects(bus: Bus, _given: dict[str, Any]) -> Found:
    found = bus.runner.run(projects.listed(bus.scope, most=_EXAMINED))
    return [(one.project, None) for one in found.projects]


def _schedules(bus: Bus) -> Found:
    return _named(one.name for one in Schedules(bus).list())


def _flows(bus: Bus) -> Found:
    return [(one.id, one.state) for one in Flows(bus).list()]


_VALUES: dict[str, Callable[[Bus, dict[str, Any]], Found]] = {
    "agent": lambda bus, _: _named(one.agent_id for one in bus.agents()),
    "flag": lambda bus, _: [(one.flag, one.state) for one in bus.flags()],
    "flow": lambda bus, _: _flows(bus),
    "group": lambda bus, given: _named(one.group for one in bus.queue(given["queue"]).groups()),
    "letter": _letters,
    "note": lambda bus, _: _named(note.key for note in bus.list_(latest=_OFFERED)),
    "project": _projects,
    "queue": lambda bus, _: _named(bus.queues()),
    "schedule": lambda bus, _: _schedules(bus),
    "tag": lambda bus, _: _named(t for note in bus.list_(latest=_OFFERED) for t in note.tags),
    "topic": lambda bus, _: _named(topic.topic for topic in bus.topics()),
    "worker": lambda bus, _: [
        (one.worker, f"{one.agent_id}, {one.queue}") for one in bus.workers()
    ],
}
