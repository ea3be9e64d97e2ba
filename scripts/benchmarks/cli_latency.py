"""How long one shell verb takes, as a whole process, against `python -c pass` of the same venv.

On a wheel install, as users have it: an editable install slows every start of its Python. The
commands take turns, each beside a `python -c pass`, which runs now before it and now after it: what
else the machine does slows both, so that the ratio, from the mean difference of these pairs without
the tenths at its ends, varies less than the times. The server is the embedded one, which keeps an
append-only file. [Why it is fast](why-fast.md#shell-verbs) explains the hot verbs.

    python -m scripts.benchmarks.cli_latency [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import scrubbed

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SIZES = {"quick": {"rounds": 3}, "page": {"rounds": 200}}
BASE = "python -c pass"
HOT = {
    "speak": ["speak", "hi", "--topic", "build"],
    "overhear (one new)": ["overhear"],
    "overhear (nothing new)": ["overhear"],
    "announce": ["announce", "building"],
    "satisfy": ["satisfy", "building"],
    "await (satisfied)": ["await", "building"],
    "recall": ["recall", "note"],
    "jot": ["jot", "note", "value", "--tag", "a,b"],
    "hook (nothing new)": ["hook", "claude", "PostToolUse"],
}
# What a client sends to a hook; other verbs do not read it.
EVENT = {
    "session_id": "3f6c2a10-7d0e-4c55-9b1e-0a6f2d8c41aa",
    "hook_event_name": "PostToolUse",
    "tool_name": "Bash",
    "tool_response": {"stdout": "ok"},
}
# How many times as long as the base a quick verb may take; these two load the most modules.
ALLOWED = {name: "1.6" if name in ("await (satisfied)", "jot") else "1.5" for name in HOT}
OTHERS = {
    "list": ["list"],
    "list --flags": ["list", "--flags"],
    "whoami": ["whoami"],
    "doctor": ["doctor"],
    "clear --dry-run": ["clear", "--dry-run"],
    "hold -- true": ["hold", "held", "--", "true"],
    "server status": ["server", "status"],
    "speak --json": ["speak", "hi", "--json"],
    "--help": ["--help"],
    "overhear --help": ["overhear", "--help"],
}


def install(place: pathlib.Path) -> pathlib.Path:
    """Install a wheel of this checkout into a new venv, and return its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    programs = place / "bin"
    quiet = [programs / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*quiet, "wheel", "--no-deps", "-w", place / "wheel", ROOT], check=True)
    (wheel,) = (place / "wheel").glob("*.whl")
    subprocess.run([*quiet, "install", wheel], check=True)
    return programs


def measure(
    base: list[str],
    commands: dict[str, list[str]],
    environment: dict[str, str],
    rounds: int,
    stdin: pathlib.Path,
) -> dict[str, list[tuple[float, float]]]:
    """Run the commands in turns, with a file as stdin; return the times of each and of its bases, in ms."""

    def timed(command: list[str]) -> float:
        with stdin.open("rb") as file:
            began = time.perf_counter()
            subprocess.run(
                command, env=environment, stdin=file, stdout=subprocess.DEVNULL, check=False
            )
            return (time.perf_counter() - began) * 1000

    took: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for turn in range(rounds + 3):
        for at, (name, command) in enumerate(commands.items()):
            if (turn + at) % 2:
                pair = timed(command), timed(base)
            else:
                beside = timed(base)
                pair = timed(command), beside
            if turn >= 3:
                took[name].append(pair)
    return took


def ratio(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return how many times as long a command took as its base, and the standard error of that."""
    differences = sorted(own - base for own, base in pairs)
    cut = len(differences) // 10
    kept = differences[cut : len(differences) - cut]
    base = percentile((base for _, base in pairs), 50)
    error = statistics.stdev(kept) / math.sqrt(len(kept)) if len(kept) > 1 else 0.0
    return 1 + statistics.mean(kept) / base, error / base


def verbs(given: argparse.Namespace) -> Iterator[Figure]:
    """From the start of the process to its end, with its output discarded.

    Hooks and shell loops call the hot verbs; the other verbs load more of the package.
    """
    with tempfile.TemporaryDirectory(prefix="ab-") as folder:
        place = pathlib.Path(folder)
        programs = install(place / "venv")
        agentbus = str(programs / "agentbus")
        environment = {**scrubbed(dict(os.environ)), "HOME": str(place), "AGENTBUS_PROJECT": "b"}
        subprocess.run([agentbus, "jot", "note", "value"], env=environment, check=True)
        event = place / "event.json"
        event.write_text(json.dumps(EVENT))
        try:
            base = [str(programs / "python"), "-c", "pass"]
            took = measure(
                base,
                {name: [agentbus, *words] for name, words in HOT.items()},
                environment,
                given.rounds,
                event,
            )
            others = {name: [agentbus, *words] for name, words in OTHERS.items()}
            slower = measure(base, others, environment, given.rounds // 4 or 1, event)
        finally:
            subprocess.run([agentbus, "server", "stop"], env=environment, check=True)
    allowed = {**ALLOWED, **dict.fromkeys(OTHERS, "16")}
    for name, title, found in (("hot", "the hot path", took), ("other", "other verbs", slower)):
        times = {verb: [own for own, _ in pairs] for verb, pairs in found.items()}
        bases = [base for pairs in found.values() for _, base in pairs]
        ratios = {verb: ratio(pairs) for verb, pairs in found.items()}
        rounds = len(next(iter(times.values())))
        table(
            f"{title}: one verb as a process, {rounds} rounds, Python {sys.version.split()[0]}",
            ["command", "median ms", f"x {BASE}", "+-", "allowed"],
            [
                [BASE, f"{percentile(bases, 50):.2f}", "1.000", "", ""],
                *(
                    [
                        verb,
                        f"{percentile(times[verb], 50):.2f}",
                        f"{against:.3f}",
                        f"{error:.3f}",
                        allowed[verb],
                    ]
                    for verb, (against, error) in ratios.items()
                ),
            ],
        )
        yield Figure(
            name=f"verbs-{name}",
            source="cli_latency.verbs",
            title=f"One verb as a process: {title}",
            measured=f"wall time of the whole process, median of {rounds} rounds",
            unit="ms",
            better="less",
            rows=(
                Row(BASE, Spread.of(bases), "baseline"),
                *(
                    Row(
                        verb,
                        Spread.of(times[verb]),
                        ratio=against,
                        against=BASE,
                        wanted=f"≤ {allowed[verb]}",
                    )
                    for verb, (against, _) in ratios.items()
                ),
            ),
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    run(verbs, parser, SIZES)


if __name__ == "__main__":
    main()
