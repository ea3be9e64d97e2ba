"""How long one shell verb takes, as a whole process, against `python -c pass` of the same venv.

On a wheel install, as users have it: an editable install slows every start of its Python. The
commands take turns, so that a noisy machine is equally noisy to all.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from tests.bench._figures import percentile, table
from tests.servers import scrubbed

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "60"))
HOT = {
    "speak": ["speak", "hi", "--topic", "build"],
    "overhear (one new)": ["overhear"],
    "overhear (nothing new)": ["overhear"],
    "announce": ["announce", "building"],
    "satisfy": ["satisfy", "building"],
    "recall": ["recall", "note"],
}
OTHERS = {
    "await (satisfied)": ["await", "building"],
    "jot": ["jot", "note", "value", "--tag", "a,b"],
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


def measure(commands: dict[str, list[str]], environment: dict[str, str]) -> dict[str, list[float]]:
    """Run the commands in turns and return each one's wall times in milliseconds."""
    took: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(ROUNDS + 3):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
            if turn >= 3:
                took[name].append((time.perf_counter() - began) * 1000)
    return took


def main() -> None:
    """Install, measure, print."""
    with tempfile.TemporaryDirectory(prefix="ab-") as folder:
        place = pathlib.Path(folder)
        programs = install(place / "venv")
        agentbus = str(programs / "agentbus")
        environment = {**scrubbed(dict(os.environ)), "HOME": str(place), "AGENTBUS_PROJECT": "b"}
        subprocess.run([agentbus, "jot", "note", "value"], env=environment, check=True)
        try:
            took = measure(
                {
                    "python -c pass": [str(programs / "python"), "-c", "pass"],
                    **{name: [agentbus, *words] for name, words in (HOT | OTHERS).items()},
                },
                environment,
            )
        finally:
            subprocess.run([agentbus, "server", "stop"], env=environment, check=True)
    base = percentile(took["python -c pass"], 50)
    table(
        f"one verb as a process, {ROUNDS} rounds, Python {sys.version.split()[0]}",
        ["command", "median ms", "x python -c pass", "allowed"],
        [
            [
                name,
                f"{percentile(values, 50):.2f}",
                f"{percentile(values, 50) / base:.2f}",
                "1.25" if name in HOT else "" if name == "python -c pass" else "5",
            ]
            for name, values in took.items()
        ],
    )


if __name__ == "__main__":
    main()
