"""publish: add tasks to a queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentbus.commands import _envelope, _payload, _together
from agentbus.commands._declare import Args, Call, Param, Verb, body, seconds, whole
from agentbus.commands._output import ReaderGone
from agentbus.core import envelope
from agentbus.core.errors import AgentBusError, InvalidPayload, UsageError
from agentbus.queues import publish
from agentbus.queues.task import UNTIL_DONE, Task

if TYPE_CHECKING:
    from agentbus.client.queue import Queue

_PIECE = 65536


VERB = Verb(
    "publish",
    Param("QUEUE", "The queue.", required=True, values="queue"),
    Param("PAYLOAD|-|@FILE", "The payload.", dest="payload"),
    Param("--lines", "Publish a task for each line of stdin."),
    Param(
        "--key K", "Dedup key: publish once within 300 s, unless the queue's policy says otherwise."
    ),
    Param("--unique", "With --key: publish once while that task has not ended."),
    Param("--delay S", "Deliver it after S seconds.", convert=seconds),
    Param(
        "--at TIME",
        "Deliver it at this time, such as 2024-01-20T15:30:00Z.",
        convert=_envelope.time,
    ),
    Param(
        "--after ID", "Deliver it when the task with this id is done. May be repeated.", many=True
    ),
    Param(
        "--after-group G",
        "With --after: the group that must have acknowledged those tasks (default).",
    ),
    Param("--causation-id ID", "Id of the task that caused this one."),
    Param(
        "--reply-to QUEUE",
        "Publish a reply to this queue when the task is done, or buried.",
        values="queue",
    ),
    Param(
        "--webhook URL", "POST the result to this https URL, if webhooks are enabled in the worker."
    ),
    Param(
        "--notify",
        "Announce on the channel, topic tasks, that the task is done, buried or cancelled.",
    ),
    Param("--ordering-key K", "Deliver tasks with this key in the order of publication."),
    Param(
        "--durable",
        "Wait until all connected replicas, or the server's disk, have confirmed it.",
        choices=("replica", "disk"),
    ),
    Param("--min-replicas N", "With --durable replica: at least N replicas (1).", convert=whole),
    *_envelope.PARAMS,
    _payload.TEXT,
    _payload.JSON,
    Param("--quiet", "Print nothing."),
    text="Prints the task's id. A payload that is JSON is sent as JSON, any other as text; --text and"
    " --payload-json decide. What begins like JSON and is not exactly that ({bad, NaN, 1e400, 23"
    " digits) is refused: exit 2. The same --key within 300 s returns the first task's id and adds"
    " nothing. A full queue refuses: exit 1. The config file's policy for the queue may set the dedup"
    " time, the bound, and a field of the payload that is the default key. If a task named by --after"
    " is buried, so is this one; --after exits 4 if it was buried before, 5 if it is unknown."
    " --durable exits 7 if nothing confirmed the task before the --deadline: it is in the queue, and a"
    " failover may lose it. With"
    " --lines, blank lines are skipped, and each id is printed as soon as its task is in the queue;"
    " if their reader leaves, the lines are published all the same. JSON: task_id, queue, priority,"
    " key.",
    examples=(
        'agentbus publish mail \'{"to": "ada@example.org"}\'',
        "agentbus publish build main --key main --priority high",
        "agentbus publish reports @report.json --delay 30m",
        "agentbus publish deploy main --after 1705764600000-0@build",
        "find . -name '*.png' | agentbus publish thumbnails --lines",
    ),
    subject="queue",
    goes_with={"--after-group": ("--after",), "--min-replicas": ("--durable",)},
    excludes={"--text": ("--payload-json",), "--at": ("--delay",)},
)


def run(call: Call) -> None:
    """Publish the tasks, and print their ids."""
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
    item = queue.policy.keyed(Task(_value(call, text), key=args.key, **_fields(args)))
    _show(call, [_publish(call, queue, item)], [item])


def _value(call: Call, text: str) -> Any:
    return _payload.read(text, as_text=call.args.text, as_json=call.args.payload_json)


def _fields(args: Args) -> dict[str, Any]:
    """Return the envelope of the tasks of this call."""
    return {
        "reply_to": args.reply_to,
        "webhook": args.webhook,
        "ordering_key": args.ordering_key,
        "notify": args.notify or None,
        "unique": UNTIL_DONE if args.unique else None,
        **_envelope.fields(args, args.causation_id),
    }


def _publish(call: Call, queue: Queue, item: object) -> str:
    args = call.args
    after = args.after or None
    task_id: str = queue.publish(
        item,
        delay=args.delay,
        at=args.at,
        after=after,
        after_group=args.after_group,
        durable=args.durable,
        min_replicas=args.min_replicas,
    )
    return task_id


def _each_line(call: Call, queue: Queue) -> None:
    args = call.args
    alone = args.delay is not None or args.at is not None or bool(args.after)
    # All lines share one envelope and correlation id: they are one unit of work, and published much
    # faster.
    fields = _fields(args)
    common = Task(None, **fields)
    done, read = 0, True
    try:
        for batch in _batches(call, 1 if alone else publish.BATCH):
            items = list(queue.policy.each_keyed(batch))
            if alone:
                ids = [_publish(call, queue, common.filling(items[0]))]
            else:
                ids = queue.publish_many(
                    items, durable=args.durable, min_replicas=args.min_replicas, **fields
                )
            done += len(ids)
            try:
                if read:
                    _show(call, ids, items)
            except ReaderGone:
                # `| head -1` reads a single id, but all lines are to be published.
                read = False
    except AgentBusError as error:
        # To continue later, the user must know the number of published tasks.
        error.message += f" (in the queue before that: {done})" if done else ""
        raise


def _batches(call: Call, most: int) -> Iterator[list[Any]]:
    """Yield the payloads of stdin's lines as they arrive; a bad line raises after earlier ones."""
    batch: list[Any] = []
    limit = call.settings.max_body
    try:
        for number, line in _lines(limit):
            if line is not None:
                batch.append(_payload_of(call, number, line))
            # If no more input is available yet, publish what was read.
            if batch and (line is None or len(batch) == most):
                yield batch
                batch = []
    except InvalidPayload:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _payload_of(call: Call, number: int, line: bytes) -> Any:
    try:
        value = _value(call, line.decode())
        envelope.encode(value, call.settings.max_body)
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
    number, rest = 0, b""
    while piece := os.read(0, _PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield number, line.removesuffix(b"\r")
        # JSON may use six bytes for one byte of the payload; a longer line cannot fit.
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
    if args.quiet:
        return
    for task_id, item in zip(ids, items, strict=True):
        fields = {
            "task_id": task_id,
            "queue": args.queue,
            "priority": args.priority,
            "key": item.key if isinstance(item, Task) else None,
        }
        out.record(fields, task_id)
