"""outbox: create the tables of events, publish waiting events, show the status."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentbus.commands import _events, _format, _long_running, _together, _worker_log
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb
from agentbus.commands._format import age, count
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.events import LeaseStanding, Ledger, Relay, Standing

_STREAMS: dict[str, Callable[[Standing], str]] = {
    "STREAM": lambda stream: word(stream.stream),
    "WAITING": lambda stream: str(stream.waiting),
    "PUBLISHED": lambda stream: str(stream.published),
    "OLDEST": lambda stream: age(stream.oldest),
}
_LEASES: dict[str, Callable[[LeaseStanding], str]] = {
    "STREAM": lambda lease: word(lease.stream),
    "ROLE": lambda lease: word(lease.role),
    "OWNER": lambda lease: word(lease.owner) if lease.owner else "-",
    "TOKEN": lambda lease: str(lease.token),
    "EXPIRES": lambda lease: _expires(lease.expires),
    "CHECKPOINT": lambda lease: lease.checkpoint,
    "LAG": lambda lease: str(lease.lag),
    "PARKED": lambda lease: str(lease.parked),
}

VERB = Verb(
    "outbox",
    actions(
        {
            "init": "Create the tables that are missing.",
            "relay": "Publish events until interrupted, each cause before its effect.",
            "status": "Print the waiting and published events of each stream, and its leases.",
        }
    ),
    Param("--sql", "With init: print the SQL instead of running it."),
    Param("--new-identity", "With init: give a copy of a database another identity."),
    Param("--once", "With relay: publish what waits now, and end."),
    _events.LEASE,
    *_events.CLEANUP,
    *_events.PARAMS,
    _worker_log.FORMAT,
    text="'init --sql' prints the statements for an empty database, for your own migrations, without"
    " connecting. Several databases may send events to one stream, but not a database and its copy:"
    " 'init --new-identity' tells the copy apart, while none of its processes runs."
    " 'relay' prints the number of events after each round that published any: Ctrl-C and"
    " SIGTERM end it after the current round. Several relays may run, and any may be killed: each"
    " stream has one at a time. Published events are kept until all consumers and archives have"
    " passed them. Needs the extra events. JSON: database, created (tables) for init, or sql; for"
    " relay published and, with --once, waiting; for status stream, waiting, published, oldest"
    " (seconds), leases (each with stream, role, owner, token, expires, checkpoint, lag, parked).",
    examples=(
        "agentbus outbox init --database postgresql://shop@db/shop",
        "agentbus outbox init --sql --database postgresql://db/shop > events.sql",
        "agentbus outbox relay",
        "agentbus outbox relay --once --json",
        "agentbus outbox status",
    ),
    subject="action",
    goes_with={
        "--once": ("relay",),
        "--sql": ("init",),
        "--new-identity": ("init",),
        **dict.fromkeys((name for each in _events.CLEANUP for name in each.names), ("relay",)),
    },
    waits="relay",
)


def run(call: Call) -> None:
    """Run the action on the outbox."""
    args = call.args
    _together.check(VERB, args)
    if args.action == "relay":
        _relay(call)
        return
    ledger = _events.ledger(call, make=args.action == "init")
    {"init": _init, "status": _status}[args.action](call, ledger)


def _init(call: Call, ledger: Ledger) -> None:
    if call.args.sql:
        for statement in ledger.statements():
            if call.out.json:
                call.out.record({"sql": statement}, "")
            for line in [] if call.out.json else f"{statement};".splitlines():
                call.out.record({}, line)
        return
    missing = ledger.missing()
    ledger.create()
    ledger.check()
    if call.args.new_identity:
        ledger.renew_identity()
    fields = {"database": ledger.place, "created": missing}
    did = f"made {', '.join(missing)}" if missing else "all tables were there"
    call.out.record(fields, f"{ledger.place}: {did}")


def _relay(call: Call) -> None:
    once = call.args.once
    with _worker_log.logged(call, "outbox") as log:
        ledger = _events.ledger(call) if once else _events.served(call, "relay")
        if ledger is None:
            return
        from agentbus.events import Relay  # needs the extra `events`

        def started() -> None:
            log.started("relay", database=ledger.place)

        relay = Relay(ledger, call.bus, lease=call.args.lease, cleanup=_events.cleanup(call))
        if once:
            _long_running.until_told([(lambda: _once(call, relay), relay.stop)])
            return

        def tell(published: int) -> None:
            call.out.record({"published": published}, f"{count(published, 'event')} published")

        _long_running.until_told([(lambda: relay.run(tell), relay.stop)], started)


def _once(call: Call, relay: Relay) -> None:
    """Publish until no event waits; warn about streams that other relays serve."""
    from agentbus.events import standing  # needs the extra `events`

    published = 0
    try:
        while added := relay.run_once():
            published += added
            if relay.stopping:
                break
    finally:
        relay.close()
    left = [stream for stream in standing(relay.ledger) if stream.waiting]
    waiting = sum(stream.waiting for stream in left)
    text = f"{count(published, 'event')} published"
    call.out.record(
        {"published": published, "waiting": waiting}, text + (f", {waiting} wait" * bool(waiting))
    )
    for stream in left:
        for lease in stream.leases:
            if lease.role == "relay" and lease.expires is not None and lease.expires > 0:
                call.out.warn(
                    f"{stream.stream}: another relay has the stream, for {age(lease.expires)} at least"
                )


def _status(call: Call, ledger: Ledger) -> None:
    from agentbus.events import standing  # needs the extra `events`

    standings = standing(ledger)
    _format.show(call.out, standings, _STREAMS, left=1)
    leases = [lease for stream in standings for lease in stream.leases]
    if leases and not call.out.json:
        call.out.record({}, "")
        _format.show(call.out, leases, _LEASES, left=3)
    _events.warn_of_readers(call, leases)


def _expires(left: float | None) -> str:
    return "-" if left is None else age(left) if left > 0 else "ran out"
