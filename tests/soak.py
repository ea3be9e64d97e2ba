"""Runs workers under every fault at once, for as long as asked, and judges what came of the tasks."""

from __future__ import annotations

import argparse
import pathlib
import secrets
import shutil
import sys
import tempfile
import time

from tests.history import violations
from tests.servers import Server
from tests.work_hands import OURS
from tests.work_harness import Plan, Site

_SHOWN = 2000


def main(argv: list[str]) -> int:
    """Run rounds until the time is up, at least one; returns 1 at the first violation."""
    options = _options(argv)
    plan = Plan(
        tasks=options.tasks,
        poison=max(1, options.tasks // 400) if options.kind in OURS else options.poison,
        workers=options.workers,
        kills=options.kills,
        server_kills=options.server_kills,
        stops=options.stops,
        cuts=options.cuts,
        kind=options.kind,
        seconds=options.timeout,
    )
    until = time.monotonic() + options.minutes * 60
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    while True:
        _say(f"seed {seed}: {plan}")
        if not _round(plan, seed, options.keep):
            return 1
        seed += 1
        if time.monotonic() >= until:
            return 0


def _round(plan: Plan, seed: int, keep: bool) -> bool:
    # A short path, since the server's socket and many files lie below it.
    place = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-soak-"))
    with (
        Server(place / "server") as server,
        Site(server, "soak", place / "site", plan, seed) as site,
    ):
        story = site.run()
        _say(site.figures(story))
        wrong: dict[str, object] = dict(violations(story))
        if site.too_few():
            wrong["too few faults"] = site.too_few()
    for name, found in wrong.items():
        _say(f"VIOLATION, {name}: {str(found)[:_SHOWN]}")
    _say(f"verdict: {'FAILED' if wrong else 'passed'}, seed {seed}")
    if wrong or keep:
        _say(f"the histories, and the server's log and files, lie in {place}")
    else:
        shutil.rmtree(place)
    return not wrong


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--kills", type=int, default=100, help="of workers, with -9")
    parser.add_argument("--server-kills", type=int, default=20, help="with -9, then a new start")
    parser.add_argument(
        "--stops", type=int, default=20, help="of workers, for longer than the visibility"
    )
    parser.add_argument(
        "--cuts", type=int, default=40, help="of connections: half a RST, half half-open"
    )
    parser.add_argument("--seed", type=int, help="gives the order of faults and their victims")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with the next seeds")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a round")
    parser.add_argument("--keep", action="store_true", help="keep the histories of sound rounds")
    parser.add_argument(
        "--kind",
        choices=(*OURS, "ack_first", "ack_after", "count_deliveries"),
        default="library",
        help="who works; all but the library's workers (the first four) must fail",
    )
    parser.add_argument("--poison", type=int, default=0, help="for those others")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
