"""How `work MODULE:TASKS` runs typed tasks."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from agentbus.commands import _long_running, _working
from agentbus.commands._format import count
from agentbus.core.errors import UsageError
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.tasks.registry import Tasks

_INTERRUPTED = 130
# Options that are declared with a task, or are for programs.
_OTHERS = ("match", "attempts", "timeout", "count")


def run(call: Call) -> int:
    """Run the tasks of a registry until a signal stops them, and return the exit code."""
    args = call.args
    for option in _OTHERS:
        if getattr(args, option):
            raise UsageError(
                f"--{option} does not go with typed tasks",
                hint="the tasks declare it" if option == "attempts" else "leave it out",
            )
    if args.reload:
        from agentbus.commands import _reload

        return _reload.run(args.queue)
    worker = _tasks(args.queue).worker(
        call.bus,
        queues=None if args.queues is None else [one for one in args.queues.split(",") if one],
        group=args.group,
        concurrency=args.concurrency,
        visibility=args.visibility,
        drain=args.drain,
        drain_timeout=args.drain_timeout,
        start=args.start,
    )
    _working.tell_of_pauses(call, worker.queues.__contains__)
    with (
        _long_running.failures_logged(call),
        _working.until_told(worker, None, args.grace, args.drain_timeout) as signals,
        _working.webhooks(call, lambda: args.drain and not signals) as sent,
    ):
        try:
            done = worker.run()
        finally:
            args.noted = {"done": worker.done, "failed": worker.failed}
    fields: dict[str, Any] = {"queues": worker.queues, "group": args.group}
    fields |= {"done": done, "failed": worker.failed}
    text = f"{', '.join(map(word, worker.queues))}: {done} done"
    text += f", {count(worker.failed, 'run')} failed" if worker.failed else ""
    if sent is not None:
        fields["webhooks"] = sent.count
        text += f", {count(sent.count, 'webhook')} sent" if sent.count else ""
    call.out.record(fields, text)
    if signal.SIGINT in signals:
        return _INTERRUPTED
    if args.drain:
        from agentbus.workers.drain import buried_error

        error = buried_error([(name, args.group, n) for name, n in worker.buried.items()])
        if error is not None:
            raise error
    return 0


def _tasks(path: str) -> Tasks:
    from agentbus.tasks.registry import Tasks

    found = _working.loaded(path, "tasks")
    if not isinstance(found, Tasks):
        raise UsageError(
            f"{path!r} is a {type(found).__name__}, not an agentbus.Tasks",
            hint="name the registry of the tasks; a queue needs a program after --, or --handler",
        )
    return found
