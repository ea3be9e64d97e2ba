"""Prints the verdicts of torture."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from itertools import islice

from agentbus.commands._format import cut
from agentbus.commands._output import Out, plain
from agentbus.core.clock import rfc3339
from tests.torture.verdict import Verdict

# How many examples of a violation are shown, and how many characters of each; how long a line is.
_EXAMPLES, _WIDEST, _LINE = 3, 160, 80


def tell(out: Out, verdict: Verdict, history: str | None, again: str) -> None:
    """Print a verdict, where its history is if it is kept, and the command that repeats it."""
    word = _word(verdict)
    fields = {
        "timestamp": rfc3339(time.time(), milliseconds=True),
        "mode": verdict.mode,
        "control": verdict.control,
        "seed": verdict.seed,
        "seconds": round(verdict.seconds, 3),
        "faults": dict(verdict.faults),
        "wanted": dict(verdict.wanted),
        "figures": {
            name: figure if isinstance(figure, int | float | str) else str(figure)
            for name, figure in verdict.figures.items()
        },
        "violations": {
            name: {"count": len(found), "examples": [_example(one) for one in _first(found)]}
            for name, found in verdict.violations.items()
        },
        "verdict": word,
        "history": history,
        "again": again,
    }
    out.record(fields, "") if out.json else _text(out, verdict, word, history, again)


def _word(verdict: Verdict) -> str:
    if verdict.control is not None:
        return "caught" if verdict.passed else "missed"
    return "passed" if verdict.passed else "failed"


def _text(out: Out, verdict: Verdict, word: str, history: str | None, again: str) -> None:
    lines = [
        verdict.mode if verdict.control is None else f"{verdict.mode}, control {verdict.control}",
        *_pairs("faults", verdict.faults),
        *_pairs("figures", verdict.figures),
    ]
    for name, found in verdict.violations.items():
        examples = "; ".join(map(_example, _first(found)))
        lines.append(f"  {name}: {len(found):,}, such as {examples}")
    if verdict.control is None and verdict.too_few:
        wanted = (f"{kind} {n} of {verdict.wanted[kind]}" for kind, n in verdict.too_few.items())
        lines.append(f"  too few faults: {', '.join(wanted)}")
    shown = word if verdict.passed else word.upper()
    when = "after" if verdict.control is not None and verdict.passed else "in"
    lines.append(f"  verdict: {shown} {when} {verdict.seconds:.1f} s")
    if history is not None:
        lines.append(f"  history: {history}")
    if not verdict.passed:
        lines.append(f"  again: {again}")
    for line in lines:
        out.record({}, line)


def _pairs(title: str, values: Mapping[str, object]) -> list[str]:
    """Return names and values, on lines that fit a terminal."""
    lines = [f"  {title}:"]
    for name, value in values.items():
        pair = f" {name} {_figure(value)},"
        if len(lines[-1]) + len(pair) > _LINE:
            lines.append("   ")
        lines[-1] += pair
    return [*lines[:-1], lines[-1].removesuffix(",") if values else f"{lines[0]} none"]


def _figure(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _first(found: Collection[object]) -> list[object]:
    return list(islice(found, _EXAMPLES))


def _example(one: object) -> str:
    return cut(plain(one if isinstance(one, str) else repr(one)), _WIDEST)
