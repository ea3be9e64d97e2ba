"""publish: add tasks to a queue."""

from __future__ import annotations

import orjson

from agentbus.commands import _together
from agentbus.commands._declare import Call, Param, Verb, body, seconds
from agentbus.core import envelope
from agentbus.core.errors import AgentBusError, InvalidPayload, UsageError
from agentbus.core.settings import environment
from agentbus.queues import publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from agentbus.client.queue import Queue

_PIECE = 65536


def header(text: str) -> tuple[str, str]:
    """Read `name=value`."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"{text!r} is not a header: write it as name=value")
    return name, value


PRIORITY = Param(
    "--priority",
    "The task's priority (normal, unless the queue's policy says otherwise).",
    choices=("low", "normal", "high", "critical"),
)
CORRELATION_ID = Param("--correlation-id ID", "Id of the larger unit of work.")
HEADER = Param("--header K=V", "A header. May be repeated.", convert=header, many=True)
VERB = Verb(
    "publish",
    "Add a task to a queue.",
    Param("QUEUE", "The queue.", required=True),
    Param("PAYLOAD|-|@FILE", "The payload.", dest="payload"),
    Param("--lines", "Publish a task for each line of stdin."),
    Param(
        "--key K", "Dedup key: publish once within 300 s, unless the queue's policy says otherwise."
    ),
    PRIORITY,
    Param("--delay S", "Deliver it after S seconds.", convert=seconds),
    Param(
        "--after ID", "Deliver it when the task with this id is done. May be repeated.", many=True
    ),
    Param(
        "--after-group G",
        "With --after: the group that must have acknowledged those tasks (default).",
    ),
    CORRELATION_ID,
    Param("--causation-id ID", "Id of the task that caused this one."),
    Param("--reply-to QUEUE", "Publish a reply to this queue when the task is done, or buried."),
    Param(
        "--webhook URL", "POST the result to this https URL, if webhooks are enabled in the worker."
    ),
    Param("--ordering-key K", "Deliver tasks with this key in the order of publication."),
    HEADER,
    text="Prints the task's id. A payload that is JSON is sent as JSON, any other as text. The same --key"
    " within 300 s returns the first task's id and adds nothing. A full queue refuses: exit 1. The config"
    " file's policy for the queue may set the dedup time, the bound, and a field of the payload that is"
    " the default key. If a task named by --after is buried, so is this one; --after exits 4 if it was"
    " buried before, 5 if it is unknown. With --lines, blank lines are skipped, and each id is printed as"
    " soon as its task is in the queue. JSON: id, queue, priority, key.",
    examples=(
        'agentbus publish mail \'{"to": "ada@example.org"}\'',
        "agentbus publish build main --key main --priority high",
        "agentbus publish reports @report.json --delay 30m",
        "agentbus publish deploy main --after 1705764600000-0@build",
        "find . -name '*.png' | agentbus publish thumbnails --lines",
    ),
    subject="queue",
    goes_with={"--after-group": ("--after",)},
)


def run(call: Call) -> None:
    """Publish, and print the ids."""
    args = call.args
    if args.lines and (args.payload not in (None, "-") or args.key is not None):
        raise UsageError(
            f"--lines cannot be combined with a {'payload' if args.key is None else 'key'}",
            hint="it reads the payloads from stdin, one a line",
        )
    _together.check(VERB, args)
    queue = call.bus.queue(args.queue)
    args.priority = args.priority or queue.policy.tier
    if args.lines:
        _each_line(call, queue)
        return
    text = body("payload", args.payload, None, call.settings.max_body)
    if not text:
        raise InvalidPayload("the payload is empty", hint="send at least a word, or null")
    item = queue.policy.keyed(_task(call, payload(text)))
    _show(call, [_publish(call, queue, item)], [item])


def payload(text: str) -> Any:
    """Parse a payload: JSON if it is JSON, otherwise the text itself."""
    try:
        value = orjson.loads(text)
    except ValueError:
        return text
    # An integer of more than 64 bits would lose digits as a number; as text it keeps them.
    return text if isinstance(value, float) and text.strip().lstrip("-").isdigit() else value


def _task(call: Call, value: object) -> publish.Task:
    """Return a payload in its envelope."""
    args = call.args
    return publish.Task(
        value,
        key=args.key,
        priority=args.priority,
        **caused(args.correlation_id, args.causation_id),
        reply_to=args.reply_to,
        webhook=args.webhook,
        headers=dict(args.header) or None,
        ordering_key=args.ordering_key,
    )


def caused(correlation_id: str | None, causation_id: str | None) -> dict[str, Any]:
    """Return a task's correlation and causation, by default those of the task that this program handles."""
    around = environment()
    cause = around.get("AGENTBUS_TASK_ID")
    return {
        "correlation_id": correlation_id or around.get("AGENTBUS_CORRELATION_ID") or cause,
        "causation_id": causation_id or cause,
        "traceparent": around.get("AGENTBUS_TRACEPARENT"),
        "trail": _trail(around.get("AGENTBUS_TRAIL")),
    }


def _trail(text: str | None) -> Any:
    """Return the agents that the current task passed; None if that is not JSON."""
    if not text:
        return None
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _publish(call: Call, queue: Queue, item: object) -> str:
    args = call.args
    after = args.after or None
    found: str = queue.publish(item, delay=args.delay, after=after, after_group=args.after_group)
    return found


def _each_line(call: Call, queue: Queue) -> None:
    args = call.args
    plain = _task(call, None) == publish.Task(None, priority=args.priority)
    alone = args.delay is not None or bool(args.after)
    done = 0
    try:
        for batch in _batches(call.settings.max_body, 1 if alone else publish.BATCH):
            tasks = batch if plain and not alone else [_task(call, value) for value in batch]
            items = list(queue.policy.each_keyed(tasks))
            if alone:
                ids = [_publish(call, queue, items[0])]
            else:
                ids = queue.publish_many(items, priority=args.priority)
            _show(call, ids, items)
            done += len(ids)
    except AgentBusError as error:
        # To continue later, the user must know how many tasks were published.
        error.message += f" (in the queue before that: {done})" if done else ""
        raise


def _batches(limit: int, most: int) -> Iterator[list[Any]]:
    """Yield the payloads of stdin's lines as they arrive; a bad line raises after those before it."""
    batch: list[Any] = []
    try:
        for number, line in _lines(limit):
            if line is not None:
                batch.append(_payload_of(number, line, limit))
            # If no more input is there yet, do not delay what was read.
            if batch and (line is None or len(batch) == most):
                yield batch
                batch = []
    except InvalidPayload:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _payload_of(number: int, line: bytes, limit: int) -> Any:
    try:
        value = payload(line.decode())
        envelope.encode(value, limit)
    except UnicodeDecodeError:
        raise InvalidPayload(
            f"line {number} is not UTF-8", hint="encode it as UTF-8, or as base64"
        ) from None
    except InvalidPayload as error:
        error.message = f"line {number}: {error.message}"
        raise
    return value


def _lines(limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield stdin's lines that are not blank, with their numbers; None after each chunk."""
    import os

    number, rest = 0, b""
    while piece := os.read(0, _PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield number, line.removesuffix(b"\r")
        # JSON may spend six bytes on one; a longer line cannot fit.
        if len(rest) > 6 * limit + _PIECE:
            raise InvalidPayload(
                f"line {number + 1} has more than {6 * limit} bytes, and {limit} fit",
                hint="store the bulk elsewhere and send where it lies",
            )
        yield number, None
    if rest.strip():
        yield number + 1, rest


def _show(call: Call, ids: list[str], items: list[Any]) -> None:
    args, out = call.args, call.out
    for task_id, item in zip(ids, items, strict=True):
        fields = {
            "id": task_id,
            "queue": args.queue,
            "priority": args.priority,
            "key": item.key if isinstance(item, publish.Task) else None,
        }
        out.record(fields, task_id)
