"""dlq: list, show, replay and purge dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.commands import _format, _together, _values, _views
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.core import names
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.names import word
from agentbus.dashboard.dashboard import Dashboard
from agentbus.queues.dead_letters import is_to_be_replayed
from agentbus.queues.ids import writable

if TYPE_CHECKING:
    from agentbus.client.queue import Queue
    from agentbus.commands._output import Out
    from agentbus.queues.dead_letters import Letter

# Number of letters in a list without --limit.
_SHOWN = 100
# Number of letters per page of those with one cause.
_AT_ONCE = 500

VERB = Verb(
    "dlq",
    actions(
        {
            "list QUEUE [ID...]": "Print a line for each that was neither replayed nor purged.",
            "show QUEUE ID...": "Print every field, including the traceback or the end of stderr.",
            "replay QUEUE [ID...]": "Publish the tasks again, with their keys and headers, each once.",
            "purge QUEUE [ID...]": "Delete the named dead letters, or all.",
        }
    ),
    Param("QUEUE", "The queue.", required=True, values="queue"),
    Param("ID...", "The dead letters (default: all).", dest="ids", many=True, values="letter"),
    Param("--group G", "The group (default).", default="default", values="group"),
    Param("--limit N", "With list: at most N, oldest first (100).", convert=whole),
    Param("--after ID", "With list: only those after this one.", values="letter"),
    Param("--replayed", "With list: those that were replayed, instead of the undecided ones."),
    Param("--match TEXT", "Only those whose error contains TEXT."),
    Param(
        "--like ID",
        "Only those whose error has the same cause as that of this letter: it differs in quoted text,"
        " addresses, ids and numbers alone.",
        values="letter",
    ),
    Param("--to QUEUE", "With replay: publish to this queue instead.", values="queue"),
    text="For the next page of 'list', use --after with the last id. A letter is replayed once: it shows"
    " the id of the new task, and is skipped when all are replayed. Exit 5 if a named letter, or"
    " for 'list' the queue, does not exist. JSON: id, queue, group, task_id, priority, attempts,"
    " timestamp, error, replayed, payload; and for show original_id, traceback, envelope; for replay"
    " id, queue, task_id; for purge queue, group, purged.",
    examples=(
        "agentbus dlq list mail",
        "agentbus dlq show mail 1763622000123-0",
        "agentbus dlq list mail --after 1763622000123-0 --limit 1000 --json",
        "agentbus dlq list mail --replayed",
        "agentbus dlq replay mail --match ConnectionError",
        "agentbus dlq replay mail --like 1763622000123-0",
        "agentbus dlq purge mail 1763622000123-0",
    ),
    subject="queue",
    goes_with={
        **dict.fromkeys(("--limit", "--after", "--replayed"), ("list",)),
        "--to": ("replay",),
    },
)


def run(call: Call) -> None:
    """Run the action on the queue's dead letters."""
    args = call.args
    queue = call.bus.queue(args.queue)
    if args.action == "show" and not args.ids:
        raise UsageError(
            "show needs the id of a dead letter",
            hint=f"see 'agentbus dlq list {names.shell_word(args.queue)}'",
        )
    _together.check(VERB, args)
    if args.like is not None and args.ids:
        raise UsageError("--like cannot be combined with ids", hint="leave them out")
    if args.after is not None and args.ids:
        raise UsageError("--after cannot be combined with ids", hint="leave it out")
    if args.to is not None and names.name("queue", args.to) != args.queue:
        writable(args.to)
    if args.action == "purge":
        _purge(call, queue)
        return
    letters = _found(call, queue)
    if args.action == "list" and not args.ids:
        letters = _existing(call, queue, letters)
    for letter in letters:
        if args.action == "replay":
            task_id = queue.replay(letter.id, group=args.group, to=args.to)
            fields = {"id": letter.id, "queue": args.to or letter.queue, "task_id": task_id}
            call.out.record(fields, f"{letter.id} replayed as {task_id}")
        elif args.action == "show" and not call.out.json:
            _show(call.out, letter)
        else:
            _list(call.out, letter, whole_of_it=args.action == "show")


def _found(call: Call, queue: Queue) -> Iterator[Letter]:
    """Yield the chosen letters as they are read."""
    args = call.args
    if args.ids:
        # Read all letters first: if one does not exist, nothing is done.
        named = [queue.letter(letter, group=args.group) for letter in args.ids]
        letters: Iterable[Letter] = (
            letter for letter in named if args.match is None or args.match in letter.error
        )
    else:
        letters = queue.each_dead_letter(args.group, after=args.after, match=args.match)
        if args.action == "replay":
            letters = filter(is_to_be_replayed, letters)
        elif args.action == "list" and not args.replayed:
            letters = (letter for letter in letters if letter.replayed is None)
    if args.like is not None:
        alike = _alike(call, queue)
        letters = (letter for letter in letters if letter.id in alike)
    if args.replayed:
        letters = (letter for letter in letters if letter.replayed is not None)
    if args.action != "list" or args.ids:
        yield from letters
        return
    if args.limit is not None:
        yield from islice(letters, args.limit)
        return
    last = None
    for letter in islice(letters, _SHOWN):
        last = letter.id
        yield letter
    if last is not None and next(iter(letters), None) is not None:
        call.out.warn(f"there are more; print them with --after {last}")


def _alike(call: Call, queue: Queue) -> set[str]:
    """Return the ids of the letters whose error has the cause of the letter --like."""
    args = call.args
    error = queue.letter(args.like, group=args.group).error
    dashboard = Dashboard(call.bus)
    ids: set[str] = set()
    after = None
    while True:
        page = dashboard.letters(
            error, queue=args.queue, group=args.group, after=after, limit=_AT_ONCE
        )
        ids |= {letter.id for letter in page.letters}
        after = page.after
        if after is None:
            return ids


def _existing(call: Call, queue: Queue, letters: Iterator[Letter]) -> Iterator[Letter]:
    """Yield letters; raise `NotFound` if there are none because the queue does not exist."""
    first = next(letters, None)
    if first is not None:
        yield first
        yield from letters
        return
    _views.must_exist(call)
    queues = call.bus.queues()
    # The name may be one under which several queues store their dead letters.
    if all(call.args.queue not in (name, call.bus.policy(name).dead_letters) for name in queues):
        queue.groups()


def _purge(call: Call, queue: Queue) -> None:
    args = call.args
    ids = list(dict.fromkeys(args.ids)) if args.like is None else sorted(_alike(call, queue))
    if args.like is not None and not ids:
        call.out.record({"queue": args.queue, "group": args.group, "purged": 0}, "0 purged")
        return
    gone = queue.purge(*ids, group=args.group, match=args.match)
    fields = {"queue": args.queue, "group": args.group, "purged": gone}
    call.out.record(fields, f"{word(args.queue)}: {gone} purged")
    if args.match is None and gone < len(ids):
        raise NotFound(
            f"{len(ids) - gone} of the named dead letters {'does' if len(ids) - gone == 1 else 'do'}"
            " not exist",
            hint=f"see 'agentbus dlq list {names.shell_word(args.queue)}'",
        )


def _list(out: Out, letter: Letter, *, whole_of_it: bool) -> None:
    fields = _values.fields(letter, "id", "queue", "group", "task_id")
    fields["priority"] = (letter.fields or {}).get("priority", "normal")
    fields |= {"attempts": letter.attempts, "timestamp": letter.failed_at}
    fields |= _values.fields(letter, "error", "replayed", "payload")
    if whole_of_it:
        fields |= {
            "original_id": letter.original_id,
            "traceback": letter.traceback,
            "envelope": _envelope(letter),
        }
    tries = "1 attempt" if letter.attempts == 1 else f"{letter.attempts} attempts"
    text = f"{letter.id} {letter.task_id or letter.original_id} after {tries}"
    text += f" at {letter.failed_at}" if letter.failed_at else ""
    text += f": {letter.error}"
    out.record(fields, text + (f" (replayed as {letter.replayed})" if letter.replayed else ""))


def _show(out: Out, letter: Letter) -> None:
    rows: dict[str, object] = {
        "letter": letter.id,
        "task": letter.task_id or letter.original_id,
        "queue": f"{word(letter.queue)}, group {word(letter.group)}",
        "attempts": letter.attempts,
        "failed": letter.failed_at,
        "replayed": letter.replayed,
        "error": letter.error,
        "payload": orjson.dumps(letter.payload).decode(),
    }
    rows |= {key.replace("_", " "): value for key, value in _envelope(letter).items()}
    _format.pairs(out, rows)
    for line in letter.traceback.splitlines():
        out.record({}, f"    {line}")


def _envelope(letter: Letter) -> dict[str, Any]:
    """Return the task's envelope without its payload."""
    try:
        envelope = orjson.loads((letter.fields or {}).get("meta", "{}"))
    except ValueError:
        return {}
    return envelope if isinstance(envelope, dict) else {}
