"""torture: kill and cut off real clients and servers, and check the guarantees."""

from __future__ import annotations

import contextlib
import shlex

from agentbus.commands import _together, _values, _verdict
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.core.errors import ConfigError, Refused, Unhealthy, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.torture.modes import TortureJob, TortureRun
    from agentbus.torture.verdict import Verdict

_MODES = ("talk", "flags", "work", "agents", "events", "archive")
_ALL = "all"
# A day; for more, start again with another seed.
_LONGEST = 1440.0
_MINUTES = _values.number(
    f"a number of minutes up to {_LONGEST:g}", lambda minutes: 0 < minutes <= _LONGEST
)


VERB = Verb(
    "torture",
    "Kill and cut off real clients and servers, and check the guarantees.",
    Param(
        "MODE...",
        "What to torture: talk, flags, work, agents, events, archive, or all of them (all).",
        dest="modes",
        many=True,
        choices=(*_MODES, _ALL),
    ),
    Param(
        "--minutes N",
        "Length of each mode on two cores (1); 0.2 is the short form, 10 what releases pass.",
        convert=_MINUTES,
    ),
    Param("--seed S", "Repeat the faults of a seed, in the same order.", convert=whole),
    Param("--server HOST:PORT", "Confirm the server at --url, by repeating its address."),
    Param("--control NAME", "Run this wrong implementation instead."),
    Param("--controls", "Run all wrong implementations instead."),
    Param(
        "--database sqlite|postgresql|URL",
        "The databases for events, each in turn; a URL names an empty PostgreSQL database.",
        many=True,
    ),
    Param("--keep DIR", "Keep all histories, in a new directory.", values="dir"),
    text="Real processes work while some are killed with -9, frozen and cut off, and their server is"
    " killed, restarted, stalled and starved; checks then judge their histories. It starts its own"
    " servers, and never uses that of the settings. With --url (and --server, to confirm) only clients and"
    " connections suffer, in their own projects, which are cleared. --control and --controls run"
    " deliberately wrong implementations in place of ours: each must be caught. Exit 6 if a guarantee was"
    " broken, fewer faults happened than planned, or a wrong implementation was not caught; the history is"
    " kept."
    " JSON: timestamp, mode, control, seed, seconds, faults, wanted, figures, violations, verdict (passed,"
    " failed, caught, missed), history, again.",
    examples=(
        "agentbus torture all --minutes 0.2",
        "agentbus torture work events --minutes 10",
        "agentbus torture talk --seed 4217",
        "agentbus torture --controls",
        "agentbus torture flags --url redis://db.example --server db.example:6379",
    ),
    subject="modes",
    excludes={"--control": ("--controls",)},
)


def run(call: Call) -> int:
    """Torture, and judge."""
    import pathlib

    from agentbus.commands._progress import Line, wanted
    from agentbus.torture import ending, modes

    args = call.args
    if all(getattr(args, param.dest) == param.initial() for param in VERB.params):
        # Not by accident: it takes minutes, and all of the machine.
        raise _no_mode(call)
    _check(call)
    url = _server(call)
    jobs = _jobs(call)
    databases = _databases(args.database, jobs)
    with ending.by_signals(), Line() as line:
        torture = modes.Run(
            jobs,
            minutes=1.0 if args.minutes is None else args.minutes,
            seed=args.seed,
            url=url,
            databases=databases,
            keep=None if args.keep is None else pathlib.Path(args.keep),
            tell=line.show if wanted(call) else lambda _line: None,
        )
        with _kept(call, torture):
            _begin(call, torture)
            return _judge(call, torture, line)


def _no_mode(call: Call) -> UsageError:
    """Print the help on stderr, and return the error."""
    if not call.out.json:
        from agentbus.commands._click import help_text
        from agentbus.commands._output import to_stderr

        to_stderr(help_text(VERB.name))
    return UsageError(
        "torture needs a mode", hint="name some modes, or all: 'agentbus torture all'"
    )


def _judge(call: Call, torture: TortureRun, line: _verdict.Clearable) -> int:
    """Print each verdict as it comes; returns the exit code."""
    told = passed = 0
    with contextlib.closing(iter(torture)) as verdicts:
        for verdict in verdicts:
            line.clear()
            told += 1
            passed += verdict.passed
            history = str(verdict.place) if torture.keeps or not verdict.passed else None
            _verdict.tell(call.out, verdict, history, _again(call, torture, verdict))
    if told < len(torture.jobs):
        call.out.warn(f"{len(torture.jobs)} were to be judged, and {told} were")
    if not call.out.json and told > 1:
        what = "caught" if torture.jobs[0].control else "passed"
        call.out.record({}, f"{passed} of {told} {what}")
    return 0 if passed == told >= len(torture.jobs) else Unhealthy.exit_code


def _check(call: Call) -> None:
    """Refuse options that exclude each other."""
    args = call.args
    _together.check(VERB, args)
    given = call.settings.sources.get("url") == "flag"
    if args.server is not None and not given:
        raise UsageError("--server goes with --url", hint="use both, or neither")
    if given and (args.controls or args.control is not None):
        raise UsageError("wrong implementations run on their own server", hint="leave out --url")


def _server(call: Call) -> str | None:
    """Return the URL of the server that the command line names and confirms."""
    from agentbus.torture import modes

    settings = call.settings
    if settings.url is None:
        return None
    source = settings.sources.get("url", "default")
    if source != "flag":
        call.out.warn(f"the server that {source} names is not used: torture starts its own")
        return None
    where = modes.address(settings.url)
    if call.args.server is None or call.args.server.lower() != where.lower():
        named = "" if call.args.server is None else f", and --server names {call.args.server}"
        raise Refused(
            f"the server at {where} was not started by torture{named}",
            hint=f"add '--server {where}': torture kills clients and connections there, never the server,"
            " and clears only projects whose names begin with torture",
        )
    return settings.url


def _jobs(call: Call) -> list[TortureJob]:
    """Return the jobs; modes that lack a package are left out, unless they were named."""
    from agentbus.torture import modes

    args = call.args
    wanted = [name for name in args.modes if name != _ALL]
    found = []
    for name in dict.fromkeys(_MODES if _ALL in args.modes or not wanted else wanted):
        try:
            found.append(modes.load(name))
        except ConfigError as error:
            if name in wanted:
                raise
            call.out.warn(f"{name} is left out: {error}")
    if not args.controls and args.control is None:
        return [modes.Job(mode) for mode in found]
    jobs = [
        modes.Job(mode, control)
        for mode in found
        for control in mode.controls
        if args.controls or control == args.control
    ]
    if not jobs:
        known = sorted({control for mode in found for control in mode.controls})
        raise UsageError(
            f"there is no control {args.control or ''!r}", hint=f"use one of {', '.join(known)}"
        )
    return jobs


def _databases(given: list[str], jobs: list[TortureJob]) -> tuple[str, ...]:
    """Return the databases that were named, else those that are available."""
    from agentbus.torture import modes

    if given and all(job.mode.name != "events" for job in jobs):
        raise UsageError("--database is for events", hint="leave it out, or add events")
    for name in given:
        modes.check_database(name)
    return tuple(dict.fromkeys(given)) or modes.databases()


def _begin(call: Call, torture: TortureRun) -> None:
    """Print the seed, and what each job does, before anything can fail."""
    from agentbus.torture import modes

    names = ", ".join(dict.fromkeys(job.mode.name for job in torture.jobs))
    where = "its own servers"
    if torture.url is not None:
        where = f"{modes.address(torture.url)}, where only clients suffer"
    head = f"seed {torture.seed}: {names}, {torture.minutes:g} min each, on {where}"
    for what in () if torture.url is not None else modes.left_out(torture.jobs, call.args.database):
        call.out.warn(f"{what} left out: that takes pip install 'agentbus-toolkit[torture]'")
    if call.out.json:
        call.out.warn(head)
        return
    call.out.record({}, head)
    width = max(len(job.name) for job in torture.jobs)
    for job in torture.jobs:
        about = job.mode.summary if job.control is None else job.mode.controls[job.control]
        call.out.record({}, f"  {job.name:<{width}}  {about}")


def _again(call: Call, torture: TortureRun, verdict: Verdict) -> str:
    """Return the command line that repeats a job, without passwords."""
    from agentbus.store.url import read

    args = call.args
    words = ["agentbus", "torture", verdict.mode, "--minutes", f"{torture.minutes:g}"]
    words += ["--seed", str(torture.seed)]
    if verdict.control is not None:
        words += ["--control", verdict.control]
    if verdict.mode == "events":
        for name in torture.databases:
            words += ["--database", read(name).masked() if "://" in name else name]
    if torture.url is not None:
        words += ["--url", read(torture.url).masked(), "--server", args.server]
    return shlex.join(words)


@contextlib.contextmanager
def _kept(call: Call, torture: TortureRun) -> Iterator[None]:
    """Print where the histories are, if it ends early."""
    try:
        yield
    except BaseException:
        torture.discard()
        if torture.place.exists():
            call.out.warn(f"the histories of seed {torture.seed} are kept in {torture.place}")
        raise
