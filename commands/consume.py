"""consume: run the consumers that a Python module declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentbus.commands import _events, _long_running, _worker_log
from agentbus.commands._declare import Call, Param, Verb

if TYPE_CHECKING:
    from agentbus.events import Consumer, Registration

_COUNTS = ("handled", "duplicates", "parked", "failed", "unknown", "foreign")

VERB = Verb(
    "consume",
    *_events.MODULE,
    Param("--once", "Handle the events that are there, and end."),
    _events.LEASE,
    *_events.PARAMS,
    _worker_log.FORMAT,
    text="Of a package, all modules named events_pipeline_consumers are loaded, at any depth."
    " Runs all declared consumers, each in its own thread, until interrupted: Ctrl-C and SIGTERM end it"
    " after the current event. With --once they run one after the other; exit 1 if a failing event"
    " blocks one. Any number of processes may run the same: of each consumer one is active, and the"
    " others wait to take over. Prints a line for each round that passed events, and failures on"
    " stderr. Needs the extra events."
    " JSON: consumer, stream, handled, duplicates, parked, failed, unknown, foreign.",
    examples=(
        "agentbus consume shop.consumers",
        "agentbus consume shop.consumers --name welcome",
        "agentbus consume shop.consumers --once --json",
    ),
    subject="module",
    waits="",
)


def run(call: Call) -> int:
    """Run the consumers until a signal arrives, and return the exit code."""
    args = call.args
    chosen = _chosen(args.module, args.name, call.settings.app)
    with _worker_log.logged(call, "consume") as log:
        ledger = _events.ledger(call) if args.once else _events.served(call, "consume")
        if ledger is None:
            return 0
        from agentbus.events import Consumer  # needs the extra `events`

        consumers = [Consumer(each, ledger, call.bus, lease=args.lease) for each in chosen]
        names = [each.name for each in chosen]
        what = f"consumer{'s' * (len(names) > 1)} {', '.join(names)}"

        def started() -> None:
            log.started(what, database=ledger.place)

        if not args.once:
            jobs = [(_acting(call, each), each.stop) for each in consumers]
            _long_running.until_told(jobs, started)
            return 0

        def stop() -> None:
            for each in consumers:
                each.stop()

        _long_running.until_told([(lambda: _once(call, consumers), stop)])
    return int(any(each.failure is not None for each in consumers))


def _acting(call: Call, consumer: Consumer) -> Callable[[], None]:
    said: Counter[str] = Counter()

    def tell(_passed: int) -> None:
        now = Counter(consumer.counts)
        _show(call, consumer, now - said)
        said.clear()
        said.update(now)

    return lambda: consumer.run(tell)


def _once(call: Call, consumers: list[Consumer]) -> None:
    for consumer in consumers:
        try:
            consumer.run_once()
            if not consumer.holds:
                call.out.warn(f"{consumer.registration.name}: it runs elsewhere already")
        finally:
            consumer.close()
        _show(call, consumer, consumer.counts)


def _show(call: Call, consumer: Consumer, counts: Counter[str]) -> None:
    declaration = consumer.registration
    fields: dict[str, object] = {"consumer": declaration.name, "stream": declaration.stream}
    fields.update((name, counts[name]) for name in _COUNTS)
    parts = [f"{counts[name]} {name}" for name in _COUNTS if counts[name] or name == "handled"]
    call.out.record(fields, f"{declaration.name}: {', '.join(parts)}")


def _chosen(module: str, name: str | None, app: str | None) -> list[Registration]:
    """Return the consumers that a module declares."""
    from agentbus.events import declare  # needs the extra `events`

    _events.load(module)
    return list(declare.chosen(declare.registered(app), module, name, app).values())
