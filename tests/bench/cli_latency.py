"""How long one shell verb takes, as a whole process, against `python -c pass` of the same venv.

On a wheel install, as users have it: an editable install slows every start of its Python. The
commands take turns, so that a noisy machine is equally noisy to all, and `python -c pass` in each
turn at another place, so that it finds the caches as the others do. The server is the embedded one,
which keeps an append-only file. [Why it is fast](why-fast.md#shell-verbs) explains the hot verbs.

    python -m tests.bench.cli_latency [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from tests.bench._figures import Figure, Row, Spread, percentile, run, table
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
# The second command is started without a shell, and with `site`.
ORDINARY = "by the ordinary script"
UNLINKED = "speak, modules not linked"
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
) -> dict[str, list[float]]:
    """Run the commands and the base in turns, with a file as stdin, and return their wall times in ms."""
    # A package of this name on the user's own path has the modules themselves imported.
    other = stdin.parent / "path"
    (other / "agentbus").mkdir(parents=True, exist_ok=True)
    unlinked = {**environment, "PYTHONPATH": str(other)}
    took: dict[str, list[float]] = {name: [] for name in (BASE, *commands)}
    for turn in range(rounds + 3):
        order = [*commands.items()]
        order.insert(turn % (len(order) + 1), (BASE, base))
        for name, command in order:
            given = unlinked if name == UNLINKED else environment
            with stdin.open("rb") as file:
                began = time.perf_counter()
                subprocess.run(
                    command, env=given, stdin=file, stdout=subprocess.DEVNULL, check=False
                )
                if turn >= 3:
                    took[name].append((time.perf_counter() - began) * 1000)
    return took


def verbs(given: argparse.Namespace) -> Iterator[Figure]:
    """From the start of the process to its end, with its output discarded.

    Hooks and shell loops call the hot verbs; the other verbs load more of the package.
    """
    with tempfile.TemporaryDirectory(prefix="ab-") as folder:
        place = pathlib.Path(folder)
        programs = install(place / "venv")
        agentbus, ordinary = str(programs / "agentbus"), str(programs / "agentbus-toolkit")
        environment = {**scrubbed(dict(os.environ)), "HOME": str(place), "AGENTBUS_PROJECT": "b"}
        subprocess.run([agentbus, "jot", "note", "value"], env=environment, check=True)
        event = place / "event.json"
        event.write_text(json.dumps(EVENT))
        try:
            base = [str(programs / "python"), "-c", "pass"]
            took = measure(
                base,
                {
                    **{name: [agentbus, *words] for name, words in HOT.items()},
                    **{f"{name}, {ORDINARY}": [ordinary, *HOT[name]] for name in HOT},
                    UNLINKED: [agentbus, *HOT["speak"]],
                },
                environment,
                given.rounds,
                event,
            )
            others = {name: [agentbus, *words] for name, words in OTHERS.items()}
            slower = measure(base, others, environment, given.rounds // 4 or 1, event)
        finally:
            subprocess.run([agentbus, "server", "stop"], env=environment, check=True)
    allowed = {BASE: "", UNLINKED: "1.3", **dict.fromkeys(OTHERS, "5")}
    for name in HOT:
        news = name == "overhear (one new)"
        allowed |= {name: "1" if news else "0.95", f"{name}, {ORDINARY}": "1.1" if news else "1.05"}
    for name, title, found in (("hot", "the hot path", took), ("other", "other verbs", slower)):
        middle = {verb: percentile(values, 50) for verb, values in found.items()}
        rounds = len(found[BASE])
        table(
            f"{title}: one verb as a process, {rounds} rounds, Python {sys.version.split()[0]}",
            ["command", "median ms", f"x {BASE}", "allowed"],
            [
                [verb, f"{ms:.2f}", f"{ms / middle[BASE]:.2f}", allowed[verb]]
                for verb, ms in middle.items()
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
                Row(BASE, Spread.of(found[BASE]), "baseline"),
                *(
                    Row(
                        verb,
                        Spread.of(found[verb]),
                        ratio=ms / middle[BASE],
                        against=BASE,
                        wanted=f"≤ {allowed[verb]}",
                    )
                    for verb, ms in middle.items()
                    if verb != BASE
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
