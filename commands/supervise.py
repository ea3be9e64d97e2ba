"""supervise: run each consumer of a module in its own process, and keep it running."""

from __future__ import annotations

import dataclasses

from agentbus.commands import _events
from agentbus.commands._declare import Call, Param, Verb, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.events import Happening

VERB = Verb(
    "supervise",
    "Run each consumer of a module in its own process, and keep it running.",
    *_events.MODULE,
    Param(
        "--heartbeat-timeout S",
        "Kill a process that sends no heartbeat for S seconds (30).",
        convert=seconds,
        default=30.0,
    ),
    Param(
        "--grace S",
        "Time to finish the current event when stopping (10).",
        convert=seconds,
        default=10.0,
    ),
    *_events.PARAMS,
    text="A process that ends, or whose handler hangs, is restarted after a pause, and the event is tried"
    " again. After 5 crashes within 60 s, or 10 within 30 minutes, the consumer is quarantined: see"
    " 'agentbus quarantine'. A run of 60 s without a crash ends such a series. Several supervisors may"
    " run: of each consumer one process is active, the others wait to take over. Processes end with"
    " their supervisor. Ctrl-C and SIGTERM end them after the current event; a second signal at once."
    " Prints a line for each change of a process; the output of handlers goes to stderr. Needs the"
    " extra events."
    " JSON: consumer, stream, event (started, crashed, killed, quarantined, released, stopped), pid, exit,"
    " signal, crashes, reason, error.",
    examples=(
        "agentbus supervise shop.consumers",
        "agentbus supervise shop.consumers --heartbeat-timeout 2m --json",
    ),
    subject="module",
)


def run(call: Call) -> None:
    """Supervise until a signal comes."""
    from agentbus.commands import _long_running

    args = call.args
    ledger = _events.ledger(call)
    from agentbus.events import Supervisor

    supervisor = Supervisor(
        args.module,
        ledger,
        call.bus,
        only=args.name,
        heartbeat_timeout=args.heartbeat_timeout,
        grace=args.grace,
    )

    def tell(happening: Happening) -> None:
        call.out.record(dataclasses.asdict(happening), _text(happening))

    with _long_running.warned(call):
        _long_running.until_told([(lambda: supervisor.run(tell), supervisor.stop)])


def _text(one: Happening) -> str:
    about = [] if one.pid is None else [f"pid {one.pid}"]
    if one.event != "stopped" or one.signal:
        about += [one.signal] if one.signal else [] if one.exit is None else [f"exit {one.exit}"]
    about += [f"crashes {one.crashes}"] if one.event in ("crashed", "killed", "quarantined") else []
    about += [one.reason] if one.reason else []
    text = f"{one.consumer}: {one.event}" + (f" ({', '.join(about)})" if about else "")
    return text + (f": {one.error}" if one.error else "")
