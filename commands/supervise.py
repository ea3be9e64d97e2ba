"""supervise: run each consumer of a module in its own process, and keep it running."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from agentbus.commands import _events, _long_running, _spark, _worker_log
from agentbus.commands._declare import Call, Param, Verb, seconds, whole
from agentbus.core import written_path
from agentbus.core.errors import NotFound, UsageError

if TYPE_CHECKING:
    from agentbus.events import Happening, SupervisedJob

_ARCHIVER = "agentbus.pipeline.archives.supervised:run"

VERB = Verb(
    "supervise",
    *_events.SOME_MODULE,
    Param("--relay", "Also run the relay, as 'outbox relay' does."),
    Param(
        "--archive PATH", "Also archive all streams to PATH, as 'archive PATH --continuous' does."
    ),
    Param(
        "--heartbeat-timeout S",
        "Kill a process that sends no heartbeat for S seconds (30).",
        convert=seconds,
        default=30.0,
    ),
    Param("--heartbeat-dir DIR", "Touch a file for each process with each of its heartbeats."),
    Param(
        "--grace S",
        "Time to finish the current event when stopping (30).",
        convert=seconds,
        default=30.0,
    ),
    _events.LEASE,
    Param(
        "--lease-renewal S",
        "Renew a lease after S seconds (10, or a third of a shorter lease).",
        convert=seconds,
    ),
    Param(
        "--poll-interval S",
        "Seconds between two looks for new streams, free leases and events to retry (1; archiver 5).",
        convert=seconds,
    ),
    Param("--batch-size N", "Events that a consumer reads at once (100).", convert=whole),
    *_events.CLEANUP,
    *_events.PARAMS,
    _worker_log.FORMAT,
    text="Of a package, all modules named events_pipeline_consumers are loaded, at any depth."
    " A process that ends, or whose handler hangs, is restarted after a pause, and the event is tried"
    " again. After 5 crashes within 60 s, or 10 within 30 minutes, the consumer is quarantined: see"
    " 'agentbus quarantine'. A run of 60 s without a crash ends such a series. The relay and the archiver"
    " are supervised alike, as 'relay' and 'archiver'; with one of them, MODULE can be left out. A process"
    " whose own configuration is wrong, such as the database of another project, ends this command with"
    " exit 2, and nothing is quarantined. Several supervisors may"
    " run: of each consumer one process is active, the others wait to take over. Processes end with"
    " their supervisor. Ctrl-C and SIGTERM end them after the current event; a second signal at once."
    " Prints a line for each change of a process; the output of handlers goes to stderr. Needs the"
    " extra events, and with --archive the extra pipeline."
    " JSON: consumer, stream, event (started, crashed, killed, quarantined, released, stopped), pid, exit,"
    " signal, crashes, reason, error.",
    examples=(
        "agentbus supervise shop.consumers",
        "agentbus supervise shop.consumers --relay --archive /data/bus",
        "agentbus supervise shop.consumers --heartbeat-timeout 2m --json",
    ),
    subject="module",
    waits="",
)


def run(call: Call) -> None:
    """Supervise until a signal arrives."""
    args = call.args
    if args.module is None and not args.relay and args.archive is None:
        raise UsageError(
            "there is nothing to supervise", hint="name a module, or give --relay or --archive PATH"
        )
    if args.module is None and args.name is not None:
        raise UsageError("--name is a consumer of a MODULE", hint="name the module")
    if args.poll_interval == 0:
        raise UsageError("--poll-interval is 0", hint="give a longer time, as in 1s")
    for path in filter(None, (args.archive, args.heartbeat_dir)):
        written_path.check(path.removeprefix("file://"))
    jobs = [] if args.archive is None else [_archiver(call)]
    ledger = _events.ledger(call)
    from agentbus.events import Supervisor  # needs the extra `events`

    supervisor = Supervisor(
        args.module,
        ledger,
        call.bus,
        only=args.name,
        relay=args.relay,
        jobs=jobs,
        heartbeat_timeout=args.heartbeat_timeout,
        heartbeat_dir=args.heartbeat_dir,
        grace=args.grace,
        lease=args.lease,
        lease_renewal=args.lease_renewal,
        poll_interval=args.poll_interval,
        batch_size=args.batch_size,
        cleanup=_events.cleanup(call),
    )

    def tell(happening: Happening) -> None:
        call.out.record(dataclasses.asdict(happening), _text(happening))

    with _worker_log.logged(call, "supervise") as log:
        _long_running.until_told(
            [(lambda: supervisor.run(tell), supervisor.stop)],
            lambda: log.started("supervisor", database=ledger.place),
        )


def _archiver(call: Call) -> SupervisedJob:
    """Return the archiver's job, after checking that its path is not another project's."""
    from agentbus.events import SupervisedJob  # needs the extra `events`

    args = call.args
    with _spark.extra():
        from agentbus.pipeline.archives.reader import check  # needs the extra `pipeline`

        with contextlib.suppress(NotFound):
            check(args.archive, project=call.bus.runner.scope.keys.project)
    options: dict[str, object] = {"path": args.archive}
    if args.poll_interval is not None:
        options["interval"] = args.poll_interval
    return SupervisedJob("archiver", _ARCHIVER, options)


def _text(one: Happening) -> str:
    about = [] if one.pid is None else [f"pid {one.pid}"]
    if one.event != "stopped" or one.signal:
        about += [one.signal] if one.signal else [] if one.exit is None else [f"exit {one.exit}"]
    about += [f"crashes {one.crashes}"] if one.event in ("crashed", "killed", "quarantined") else []
    about += [one.reason] if one.reason else []
    text = f"{one.consumer}: {one.event}" + (f" ({', '.join(about)})" if about else "")
    return text + (f": {one.error}" if one.error else "")
