"""Runs typed tasks for `work MODULE:TASKS`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from agentbus.commands import _processes, _reload, _worker_log, _working
from agentbus.core.errors import UsageError
from agentbus.core.names import word
from agentbus.tasks.registry import Tasks
from agentbus.workers.loop import buried_error

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.commands._processes import Share
    from agentbus.commands._worker_log import WorkerLog

_INTERRUPTED = 130
# Options that a task's declaration sets, or that only programs use.
_OTHERS = ("match", "batch", "attempts", "timeout", "count", "max_tasks_per_child")


def run(call: Call) -> int:
    """Run the tasks of a registry until a signal stops them, and return the exit code."""
    args = call.args
    for option in _OTHERS:
        if getattr(args, option):
            raise UsageError(
                f"--{option.replace('_', '-')} does not go with typed tasks",
                hint="the tasks declare it" if option == "attempts" else "leave it out",
            )
    if args.reload:
        return _reload.run(args.queue)
    tasks = registry(args.queue)
    with _worker_log.logged(call, "work") as log:
        return _run(call, tasks, log)


def _run(call: Call, tasks: Tasks, log: WorkerLog) -> int:
    args = call.args
    share: Share | None = vars(args).get("share")
    worker = tasks.worker(
        call.bus,
        queues=None if args.queues is None else [one for one in args.queues.split(",") if one],
        group=args.group,
        concurrency=args.concurrency,
        visibility=args.visibility,
        drain=args.drain,
        drain_timeout=args.drain_timeout,
        start=args.start,
        owner=args.queue,
        middleware=log.middleware,
    )
    what = ", ".join(map(word, worker.queues))
    of = {"queues": worker.queues, "group": args.group}

    def started(**more: object) -> None:
        log.started(f"worker of {what}", concurrency=args.concurrency, **of, **more)
        _working.tell_of_pauses(call, worker.queues.__contains__)

    if share is None and args.processes > 1:
        started(processes=args.processes)
        code, totals = _processes.keep(call)
        args.noted = {"done": totals["done"], "failed": totals["failed"]}
        sent = totals["sent"] if call.settings.webhooks else None
        log.totals(what, of, totals["done"], totals["failed"], sent)
        return code
    with (
        _working.until_told(worker, None, args.grace, args.drain_timeout) as signals,
        _working.webhooks(call, lambda: args.drain and not signals) as webhooks,
    ):
        if share is None:
            started()
        else:
            share.ready()
        try:
            done = worker.run()
        finally:
            args.noted = {"done": worker.done, "failed": worker.failed}
    sent = None if webhooks is None else webhooks.count
    if share is not None:
        share.ended(done, worker.failed, sent or 0, stopped=bool(signals))
    else:
        log.totals(what, of, done, worker.failed, sent)
    if signal.SIGINT in signals:
        return _INTERRUPTED
    if args.drain:
        error = buried_error([(name, args.group, n) for name, n in worker.buried.items()])
        if error is not None and (share is None or share.number == 1):
            raise error
        if error is not None:
            return error.exit_code
    return 0


def registry(path: str) -> Tasks:
    """Return the registry of typed tasks that a path names. Raises `UsageError`."""
    loaded = _working.loaded(path, "tasks")
    if not isinstance(loaded, Tasks):
        raise UsageError(
            f"{path!r} is a {type(loaded).__name__}, not an agentbus.Tasks",
            hint="name the registry of the tasks; a queue needs a program after --, or --handler",
        )
    return loaded
