"""The fast parser of command lines.

It handles plain command lines and leaves everything else (help, mistakes, unusual spellings) to
click. Both parsers are built from the same declarations, and agree on every line that the fast
parser accepts.
"""

from __future__ import annotations

from agentbus.commands._declare import GLOBAL, VERBS, grammar, module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from agentbus.commands._declare import Spec, Verb


def parse(argv: Sequence[str]) -> tuple[Verb, dict[str, Any], Any] | None:
    """Parse a command line; return the verb, its values and its module, or None to decline."""
    known, arguments, values = grammar(GLOBAL)
    positional: list[str] = []
    verb: Verb | None = None
    loaded: Any = None
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--" and verb is not None:
            positional.extend(argv[at:])
            break
        if word[:1] == "-" and word != "-":
            name, equals, value = word.partition("=")
            spec = known.get(name)
            if spec is None or (spec[1] and equals):
                return None
            if spec[1]:
                values[spec[0]] = True
                continue
            if not equals:
                if at == len(argv) or argv[at][:1] == "-":
                    return None
                value = argv[at]
                at += 1
            if not _store(spec, value, values):
                return None
        elif verb is None:
            if word not in VERBS:
                return None
            loaded = module(word)
            verb = loaded.VERB
            own, arguments, initial = grammar(verb.params)
            known |= own
            values |= initial
        else:
            positional.append(word)
    if verb is None or not _place(arguments, positional, values):
        return None
    if any(spec[3] and not values[spec[0]] for spec in known.values()):
        return None
    return verb, values, loaded


def _place(arguments: Sequence[Spec], words: list[str], values: dict[str, Any]) -> bool:
    """Assign words to the verb's arguments in order; one with `many` takes all remaining words."""
    for spec in arguments:
        taken, words = (words, []) if spec[2] else (words[:1], words[1:])
        if spec[3] and not taken:
            return False
        for word in taken:
            if not _store(spec, word, values):
                return False
    return not words


def _store(spec: Spec, text: str, values: dict[str, Any]) -> bool:
    dest, _, many, _, choices, convert = spec
    if choices and text not in choices:
        return False
    try:
        value = text if choices or convert is None else convert(text)
    except ValueError:
        return False
    values[dest] = [*values[dest], value] if many else value
    return True
