"""Kill and cut off real clients and servers, and check the guarantees: `scripts/torture`."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from agentbus.commands._output import Out, ReaderGone, plain, to_stderr
from agentbus.commands._progress import Line
from agentbus.core.errors import AgentBusError, Refused, Unhealthy, UsageError
from agentbus.store.url import read
from tests.torture import ending, modes, report
from tests.torture.modes import MODES, TortureJob, TortureRun
from tests.torture.verdict import Verdict

_NAME = "scripts/torture"
_ALL = "all"
# A day; for more, start again with another seed.
_LONGEST = 1440.0
_INTERRUPTED, _READER_GONE = 130, 141
_ABOUT = (
    "Real processes work while some are killed with -9, frozen and cut off, and their server is killed,"
    " restarted, stalled and starved; checks then judge their histories. Torture starts its own servers."
    " With --url (and --server, to confirm) only clients and connections suffer, in projects of the run,"
    " which are cleared. --control and --controls run deliberately wrong implementations in place of ours:"
    " each must be caught."
)
_EXIT_CODES = {
    0: "all passed, or all wrong implementations were caught",
    1: "the run itself failed",
    2: "wrong usage",
    4: "the server at --url is not confirmed",
    6: "a guarantee was broken, fewer faults happened than planned, or a wrong implementation was not"
    " caught; the history is kept",
    130: "interrupted; the histories are kept",
}
_EXAMPLES = (
    f"{_NAME} all --minutes 0.2",
    f"{_NAME} work events --minutes 10",
    f"{_NAME} talk --seed 4217",
    f"{_NAME} --controls",
    f"{_NAME} flags --url redis://db.example --server db.example:6379",
)


def main(words: Sequence[str] | None = None) -> int:
    """Run what a command line says, and return the exit code."""
    try:
        return _run(sys.argv[1:] if words is None else words)
    except AgentBusError as error:
        _warn(error.message)
        if error.shell_hint:
            to_stderr(f"hint: {plain(error.shell_hint)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ReaderGone:
        return _READER_GONE


def _run(words: Sequence[str]) -> int:
    args = _parser([]).parse_intermixed_args(words)
    if unknown := [name for name in args.modes if name not in (*MODES, _ALL)]:
        raise UsageError(
            f"there is no mode {unknown[0]!r}", hint=f"use {', '.join(MODES)}, or {_ALL}"
        )
    if args.help:
        _parser(args.modes).print_help()
        return 0
    if not words:
        # Not by accident: it takes minutes, and all of the machine.
        _parser([]).print_help(sys.stderr)
        raise UsageError("a mode is missing", hint=f"name some modes, or all: '{_NAME} {_ALL}'")
    _check(args)
    jobs = _jobs(args)
    databases = _databases(args.database, jobs)
    out = Out(json=args.json)
    redrawn = not args.json and os.environ.get("TERM") != "dumb" and os.isatty(2)
    with ending.by_signals(), Line() as line:
        run = modes.Run(
            jobs,
            minutes=args.minutes,
            seed=args.seed,
            url=args.url,
            databases=databases,
            keep=args.keep,
            tell=line.show if redrawn else lambda _line: None,
        )
        with _kept(run):
            _begin(args, run, out)
            return _judge(args, run, out, line)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"'{_NAME} --help' lists all options")


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser, whose help is about these modes."""
    parser = _Parser(
        prog=_NAME,
        usage=f"{_NAME} {' '.join(names) or 'MODE...'} [OPTION...]",
        description=_description(names),
        epilog=_epilog(names),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("modes", nargs="*", metavar="MODE", help=argparse.SUPPRESS)
    option(
        "--minutes",
        type=_minutes,
        default=1.0,
        metavar="N",
        help="length of each mode on two cores (1); 0.2 is the short form, 10 the size for a release",
    )
    option("--seed", type=_seed, metavar="S", help="repeat the faults of a seed, in the same order")
    option("--url", help="torture clients on this server, redis://HOST:PORT, and not the server")
    option("--server", metavar="HOST:PORT", help="confirm --url by repeating its address")
    wrong = parser.add_mutually_exclusive_group()
    wrong.add_argument("--control", metavar="NAME", help="run this wrong implementation instead")
    wrong.add_argument(
        "--controls", action="store_true", help="run all wrong implementations instead"
    )
    option(
        "--database",
        action="append",
        default=[],
        metavar="D",
        help="sqlite, postgresql, or postgresql://... of an empty database, for events; can be repeated",
    )
    option(
        "--keep", type=pathlib.Path, metavar="DIR", help="keep all histories, in a new directory"
    )
    option("--json", action="store_true", help="print each verdict as a line of JSON")
    option(
        "-h",
        "--help",
        action="store_true",
        help="show this help; after modes, what their controls do wrong",
    )
    return parser


def _minutes(word: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (minutes := float(word)) <= _LONGEST:
            return minutes
    raise argparse.ArgumentTypeError(f"{word!r} is not a number of minutes up to {_LONGEST:g}")


def _seed(word: str) -> int:
    if word.isascii() and word.isdigit():
        return int(word)
    raise argparse.ArgumentTypeError(f"{word!r} is not a whole number")


def _description(names: Sequence[str]) -> str:
    if not names or _ALL in names:
        table = _table({name: mode.summary for name, mode in MODES.items()} | {_ALL: "all of them"})
        return f"{_filled(_ABOUT)}\n\nmodes:\n{table}"
    return "\n\n".join(
        f"{_filled(f'{name}: {MODES[name].summary}.')}\n\n"
        f"wrong implementations (--control NAME):\n{_table(MODES[name].controls)}"
        for name in dict.fromkeys(names)
    )


def _epilog(names: Sequence[str]) -> str:
    codes = _table({str(code): meaning for code, meaning in _EXIT_CODES.items()})
    examples: Sequence[str] = _EXAMPLES
    if names and _ALL not in names:
        control = next(iter(MODES[names[0]].controls))
        mode = f"{_NAME} {names[0]}"
        examples = (f"{mode} --minutes 0.2", f"{mode} --control {control}", f"{mode} --controls")
    return "\n".join(["exit codes:", codes, "", "examples:", *(f"  {words}" for words in examples)])


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 110)


def _filled(text: str) -> str:
    return textwrap.fill(text, _width())


def _table(rows: Mapping[str, str]) -> str:
    """Return names and what they mean, in two columns."""
    wide = max(map(len, rows))
    return "\n".join(
        textwrap.fill(
            text,
            _width(),
            initial_indent=f"  {name:<{wide}}  ",
            subsequent_indent=" " * (wide + 4),
        )
        for name, text in rows.items()
    )


def _check(args: argparse.Namespace) -> None:
    """Refuse options that exclude each other, and a server that is not confirmed."""
    if args.url is None:
        if args.server is not None:
            raise UsageError("--server goes with --url", hint="use both, or neither")
        return
    if args.controls or args.control is not None:
        raise UsageError("wrong implementations run on their own server", hint="leave out --url")
    where = modes.address(args.url)
    if args.server is None or args.server.lower() != where.lower():
        named = "" if args.server is None else f", and --server names {args.server}"
        raise Refused(
            f"the server at {where} was not started by torture{named}",
            hint=f"add '--server {where}': torture kills clients and connections there, never the server,"
            " and clears only projects whose names begin with torture",
        )


def _jobs(args: argparse.Namespace) -> list[TortureJob]:
    names = MODES if _ALL in args.modes or not args.modes else dict.fromkeys(args.modes)
    chosen = [MODES[name] for name in names]
    if not args.controls and args.control is None:
        return [modes.Job(mode) for mode in chosen]
    jobs = [
        modes.Job(mode, control)
        for mode in chosen
        for control in mode.controls
        if args.controls or control == args.control
    ]
    if not jobs:
        known = sorted({control for mode in chosen for control in mode.controls})
        raise UsageError(
            f"there is no control {args.control or ''!r}", hint=f"use one of {', '.join(known)}"
        )
    return jobs


def _databases(given: Sequence[str], jobs: Iterable[TortureJob]) -> tuple[str, ...]:
    """Return the databases that were named, else those that are available."""
    if given and all(job.mode.name != "events" for job in jobs):
        raise UsageError("--database is for events", hint="leave it out, or add events")
    for name in given:
        modes.check_database(name)
    return tuple(dict.fromkeys(given)) or modes.databases()


def _begin(args: argparse.Namespace, run: TortureRun, out: Out) -> None:
    """Print the seed, and what each job does, before anything can fail."""
    names = ", ".join(dict.fromkeys(job.mode.name for job in run.jobs))
    where = "its own servers"
    if run.url is not None:
        where = f"{modes.address(run.url)}, where only clients suffer"
    head = f"seed {run.seed}: {names}, {run.minutes:g} min each, on {where}"
    for what in () if run.url is not None else modes.left_out(run.jobs, args.database):
        _warn(f"{what} left out: {modes.LACKING}")
    if out.json:
        _warn(head)
        return
    out.record({}, head)
    width = max(len(job.name) for job in run.jobs)
    for job in run.jobs:
        about = job.mode.summary if job.control is None else job.mode.controls[job.control]
        out.record({}, f"  {job.name:<{width}}  {about}")


def _judge(args: argparse.Namespace, run: TortureRun, out: Out, line: Line) -> int:
    """Print each verdict as it comes; return the exit code."""
    judged = passed = 0
    with contextlib.closing(iter(run)) as verdicts:
        for verdict in verdicts:
            line.clear()
            judged += 1
            passed += verdict.passed
            history = str(verdict.place) if run.keeps or not verdict.passed else None
            report.tell(out, verdict, history, _again(args, run, verdict))
    if judged < len(run.jobs):
        _warn(f"{len(run.jobs)} were to be judged, and {judged} were")
    if not out.json and judged > 1:
        what = "caught" if run.jobs[0].control else "passed"
        out.record({}, f"{passed} of {judged} {what}")
    return 0 if passed == judged >= len(run.jobs) else Unhealthy.exit_code


def _again(args: argparse.Namespace, run: TortureRun, verdict: Verdict) -> str:
    """Return the command line that repeats a job, without passwords."""
    words = [_NAME, verdict.mode, "--minutes", f"{run.minutes:g}", "--seed", str(run.seed)]
    if verdict.control is not None:
        words += ["--control", verdict.control]
    if verdict.mode == "events":
        for name in run.databases:
            words += ["--database", read(name).masked() if "://" in name else name]
    if run.url is not None:
        words += ["--url", read(run.url).masked(), "--server", args.server]
    return shlex.join(words)


@contextlib.contextmanager
def _kept(run: TortureRun) -> Iterator[None]:
    """Print where the histories are, if it ends early."""
    try:
        yield
    except BaseException:
        run.discard()
        if run.place.exists():
            _warn(f"the histories of seed {run.seed} are kept in {run.place}")
        raise


def _warn(text: str) -> None:
    to_stderr(f"torture: {plain(text)}\n")


if __name__ == "__main__":
    sys.exit(main())
