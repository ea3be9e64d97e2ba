"""Runs producers, relays and consumers under every fault at once, and judges what the database holds."""

from __future__ import annotations

import argparse
import pathlib
import secrets
import shutil
import sys
import tempfile

from tests.soak_events.judging import violations
from tests.soak_events.site import Plan, Site

_SHOWN = 1000
_EXPECTED = ("lost", "doubled")


def main(argv: list[str]) -> int:
    """Run each database once; returns 1 if anything was wrong, or if nothing was where it must be."""
    options = _options(argv)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    both = ("sqlite", "postgresql")
    found = [
        _round(_plan(options, each), seed, options.keep)
        for each in (both if options.database == "both" else (options.database,))
    ]
    return int(not all(found))


def _round(plan: Plan, seed: int, keep: bool) -> bool:
    place = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-soak-", dir="/tmp"))
    _say(f"seed {seed}: {plan}")
    with Site(plan, seed, place) as site:
        story = site.run()
        _say(site.figures(story))
        wrong: dict[str, object] = dict(violations(story))
        if site.too_few():
            wrong["too few faults"] = site.too_few()
        if wrong or keep:
            site.keep()
    for name, each in wrong.items():
        number = len(each) if hasattr(each, "__len__") else ""
        _say(f"VIOLATION, {name}: {number} {str(each)[:_SHOWN]}")
    sound = all(name in wrong for name in _EXPECTED) if plan.naive else not wrong
    if plan.naive:
        _say(f"naive: {'found out' if sound else 'NOT FOUND OUT'}, seed {seed}")
    else:
        _say(f"verdict: {'passed' if sound else 'FAILED'}, seed {seed}")
    if keep or not sound:
        _say(f"all tables and what the processes said lie in {place}")
    else:
        shutil.rmtree(place)
    return sound


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _plan(options: argparse.Namespace, database: str) -> Plan:
    given = {name: getattr(options, name) for name in Plan._fields if hasattr(options, name)}
    del given["database"]
    return Plan(database, **given)


def _options(argv: list[str]) -> argparse.Namespace:
    usual = Plan()
    parser = argparse.ArgumentParser(prog="scripts/soak-events", description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--events", type=int, default=usual.events)
    parser.add_argument("--rolled-back", type=float, default=usual.rolled_back, help="a share")
    parser.add_argument("--producers", type=int, default=usual.producers)
    parser.add_argument("--relays", type=int, default=usual.relays)
    parser.add_argument("--each", type=int, default=usual.each, help="processes of a consumer")
    parser.add_argument("--kills", type=int, default=usual.kills, help="with -9, some at a step")
    parser.add_argument(
        "--server-kills", type=int, default=usual.server_kills, help="with -9; some lose their tail"
    )
    parser.add_argument("--freezes", type=int, default=usual.freezes, help="beyond the lease")
    parser.add_argument(
        "--cuts", type=int, default=usual.cuts, help="of connections: half a RST, half half-open"
    )
    parser.add_argument("--wipes", type=int, default=usual.wipes, help="of the server, whole")
    parser.add_argument("--restarts", type=int, default=usual.restarts, help="of PostgreSQL")
    parser.add_argument("--lease", type=float, default=usual.lease, help="in seconds")
    parser.add_argument("--gap", type=float, default=usual.gap, help="seconds between faults")
    parser.add_argument("--seed", type=int, help="gives the order of faults and their victims")
    parser.add_argument("--keep", action="store_true", help="keep what sound rounds wrote")
    parser.add_argument(
        "--naive", action="store_true", help="a naive relay and consumers: they must be found out"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
