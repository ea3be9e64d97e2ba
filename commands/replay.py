"""replay: publish entries of an archive again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.commands import _format, _progress, _spark, _values
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.commands._format import age, count
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.pipeline.replays.record import Source
    from agentbus.pipeline.replays.replay import ReplayResult


_RATE = _values.number("a number above 0", lambda rate: 0 < rate < 1e12)
VERB = Verb(
    "replay",
    Param(
        "PATH", "The archive: a directory, or s3://, gs:// or az://…", required=True, values="file"
    ),
    Param("--from ID|TIME|30m", "Start at this entry or time.", dest="start"),
    Param("--to ID|TIME|30m", "End at this entry or time, inclusive.", dest="end"),
    Param(
        "--stream S",
        "Only this stream (q:mail, dlq:mail:default, ch:main); may be repeated.",
        dest="streams",
        many=True,
    ),
    Param("--where SQL", "Only rows that match this condition."),
    Param("--to-queue Q", "Publish all tasks to this queue.", dest="queue", values="queue"),
    Param("--to-channel", "Publish messages to the channel.", dest="channel"),
    Param("--rate N", "Publish at most N rows per second.", convert=_RATE),
    Param("--dry-run", "Count the rows, and publish nothing."),
    Param(
        "--id ID", "Name of the replay (default: derived from the other options).", dest="replay_id"
    ),
    Param("--as-of VERSION|TIME", "Replay the archive as it was at this version or time."),
    Param("--keep-replies", "Keep reply_to and webhook, so that results are sent again."),
    Param(
        "--wait S",
        "Seconds to wait for a full queue or for the server (default 60).",
        dest="patience",
        convert=seconds,
        default=60.0,
    ),
    _spark.STORAGE,
    *_spark.PARAMS,
    text="Without --stream it replays all queues, or with --to-channel the channel; dead letters and"
    " messages only if --stream names them. Each task goes back to its queue, or to --to-queue, with its"
    " priority; the field replayed_from names its origin. Run the same command again to resume a replay"
    " that was killed; one that is finished publishes nothing, unless you give another --id. Exit 1 if a"
    " queue stays full. JSON: id,"
    " rows, published, skipped, streams (each with stream, target, priority, rows, first, last),"
    " seconds, dry_run, finished, masked.",
    examples=(
        "agentbus replay /data/archive --stream q:mail --from 2026-11-20 --dry-run",
        "agentbus replay /data/archive --stream dlq:mail:default --to-queue mail --rate 500",
        "agentbus replay s3://bucket/archive --where \"payload like '%invoice%'\" --to-queue check",
    ),
    subject="path",
)
_COLUMNS: dict[str, Callable[[Source], str]] = {
    "STREAM": lambda stream: word(stream.stream),
    "TO": lambda stream: "the channel" if stream.target is None else word(stream.target),
    "PRIORITY": lambda stream: stream.priority,
    "ROWS": lambda stream: str(stream.rows),
    "FIRST": lambda stream: stream.first,
    "LAST": lambda stream: stream.last,
}


def run(call: Call) -> None:
    """Replay with a progress line, and print the result."""
    with _spark.extra():
        from agentbus.pipeline.archives import delta_table  # needs the extra `pipeline`
        from agentbus.pipeline.replays.replay import replay  # needs the extra `pipeline`
    args = call.args
    at = _spark.located(call, args.path)
    with contextlib.ExitStack() as stack:

        def spark() -> Any:
            return stack.enter_context(_spark.session(call, at))

        shown = stack.enter_context(contextlib.ExitStack())

        def watch(name: str, rows: int) -> None:
            _watch(call, shown, name, rows)

        version = (
            None if args.as_of is None else delta_table.ArchiveTable(at).version_as_of(args.as_of)
        )
        done = replay(
            spark,
            at,
            call.settings,
            start=args.start,
            end=args.end,
            streams=args.streams,
            where=args.where,
            queue=args.queue,
            channel=args.channel,
            rate=args.rate,
            dry_run=args.dry_run,
            replay_id=args.replay_id,
            version=version,
            keep_replies=args.keep_replies,
            patience=args.patience,
            watch=watch,
        )
        shown.close()
        _show(call, done)
        if done.masked:
            call.out.warn(f"the archive may hold masks in place of {', '.join(done.masked)}")


def _watch(call: Call, shown: contextlib.ExitStack, name: str, rows: int) -> None:
    from agentbus.pipeline.replays.record import progress  # needs the extra `pipeline`

    if not _progress.wanted(call):
        return
    scope = call.enter()

    def left() -> int:
        return rows - int(call.run(progress(scope, name)))

    def text(left: int) -> str:
        return f"replay: {rows - left} of {rows} rows, {100 * (rows - left) // max(rows, 1)} %"

    shown.enter_context(_progress.Countdown(left, text))


def _show(call: Call, done: ReplayResult) -> None:
    if call.out.json:
        call.out.record(_values.fields(done) | {"seconds": round(done.seconds, 3)}, "")
        return
    if done.dry_run:
        _format.show(call.out, done.streams, _COLUMNS, left=2)
    call.out.record({}, _said(done))


def _said(done: ReplayResult) -> str:
    if done.dry_run:
        text = f"replay {done.id}: {count(done.rows, 'row')} would be published"
        return text + (f", {done.skipped} of them are" if done.skipped else "")
    if done.finished:
        return (
            f"replay {done.id}: nothing to do, its {count(done.rows, 'row')} were published by"
            f" {done.finished}; give another --id to publish them again"
        )
    if not done.rows:
        return f"replay {done.id}: no rows match"
    speed = f", {round(done.published / done.seconds)}/s" if done.published else ""
    before = f"; {done.skipped} were published before" if done.skipped else ""
    return (
        f"replay {done.id}: {count(done.published, 'row')} published in {age(done.seconds)}"
        f"{speed}{before}"
    )
