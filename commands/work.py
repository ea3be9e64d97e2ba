"""work: run a program, or a Python function, for each task of a queue."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.commands import (
    _processes,
    _progress,
    _together,
    _typed,
    _worker_log,
    _working,
    _worktree,
)
from agentbus.commands._batch_handling import BatchHandling
from agentbus.commands._declare import Call, Param, Verb, seconds, whole
from agentbus.commands._handling import Handling
from agentbus.commands._output import ReaderGone
from agentbus.commands._program import Program
from agentbus.core import names
from agentbus.core.errors import AgentBusError, UsageError
from agentbus.core.names import word
from agentbus.core.settings import environment
from agentbus.tasks.limits import Limits
from agentbus.workers.loop import buried_error
from agentbus.workers.match import matches

if TYPE_CHECKING:
    from agentbus.commands._declare import Args
    from agentbus.commands._processes import Share
    from agentbus.commands._worker_log import WorkerLog
    from agentbus.workers.match import MatchWorker
    from agentbus.workers.worker import Worker


_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_INTERRUPTED = 130
_GRACE = 30.0


def at_least_one(text: str) -> int:
    """Parse a number that must be at least 1."""
    number = whole(text)
    if not number:
        raise ValueError("0 is too few")
    return number


def some_time(text: str) -> float:
    """Parse a number of seconds other than 0."""
    span = seconds(text)
    if not span:
        raise ValueError("0 is too short")
    return span


def _at_most(most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        number = at_least_one(text)
        if number > most:
            raise ValueError(f"{number:,} is too many: at most {most:,}")
        return number

    return convert


VERB = Verb(
    "work",
    Param(
        "QUEUE",
        "The queue. Without CMD and --handler: MODULE:TASKS, where the typed tasks are declared.",
        required=True,
        values="queue",
    ),
    Param("-- CMD...", "The program and its arguments.", dest="command", many=True),
    Param("--handler MODULE:FUNCTION", "Call a Python function with each delivery instead."),
    Param(
        "--match",
        "QUEUE is a pattern: take the tasks of all queues that match, in turns. * stands for any"
        " characters, ? for one, [ab] for one of several. New queues are found within 5 seconds.",
    ),
    Param(
        "--group G",
        "Workers of one group share the tasks; each group gets them all (default).",
        default="default",
        values="group",
    ),
    Param(
        "--from",
        "Where a new group starts: at the first task (default), or with tail after the newest. A"
        " group that exists continues.",
        dest="start",
        choices=("first", "tail"),
        default="first",
    ),
    Param(
        "--concurrency N", "Run up to N tasks at once (1).", convert=_at_most(100_000), default=1
    ),
    Param(
        "--batch N",
        "Give the program up to N tasks at once, the payloads as lines.",
        convert=_at_most(1000),
    ),
    Param(
        "--processes N",
        "Run N processes, each with its --concurrency; one that crashes is replaced (1).",
        convert=_at_most(1000),
        default=1,
    ),
    Param(
        "--max-tasks-per-child N",
        "Replace a process after N tasks are done, such as one that leaks memory.",
        convert=at_least_one,
    ),
    Param(
        "--attempts N",
        "Attempts in all before a task is buried (4, unless the queue's policy says otherwise).",
        convert=at_least_one,
    ),
    Param(
        "--visibility S",
        "Reclaim the tasks of a worker without a heartbeat for S seconds (180, unless the"
        " queue's policy says otherwise).",
        convert=some_time,
    ),
    Param(
        "--timeout S",
        "Kill the program and its children after S seconds; the task is retried.",
        convert=some_time,
    ),
    Param(
        "--grace S",
        "On SIGTERM, give running tasks S seconds to finish (30).",
        convert=seconds,
        default=_GRACE,
    ),
    Param(
        "--drain",
        "Stop when no task of the group is queued, waits for a retry or is held by a worker; exit 8"
        " if one was buried meanwhile.",
    ),
    Param("--drain-timeout S", "With --drain: give up after S seconds.", convert=some_time),
    Param("--count N", "Stop after N tasks are done.", convert=at_least_one),
    Param(
        "--worktree",
        "Run the program for each task in a new git worktree, on a new branch from HEAD named after the"
        " task. At the end the worktree is removed if it is clean; else it stays, and is named.",
    ),
    Param("--keep", "With --worktree: keep all worktrees."),
    Param("--queues Q,...", "Of MODULE:TASKS, run the tasks of these queues alone."),
    Param(
        "--reload",
        "For development, with MODULE:TASKS: start again when a Python file below this directory changes.",
    ),
    _worker_log.FORMAT,
    text="The program reads the task's payload from stdin, as JSON, and its metadata from the environment:"
    " AGENTBUS_TASK_ID, AGENTBUS_QUEUE, AGENTBUS_ATTEMPT, AGENTBUS_PRIORITY, AGENTBUS_CORRELATION_ID"
    " and so on. Exit 0: the task is done, and stdout is its result. Exit 65: the task is buried at"
    " once. Any other exit: the task is retried with growing delays, and buried after the last"
    " attempt, with the end of its output. Ctrl-C and SIGTERM: finish the running tasks, then stop; a"
    " second time: stop now. The log on stderr has a line when the worker starts, one for each run, and"
    " the totals at the end; the output of programs, prefixed by the task, and the tracebacks of handlers."
    " With --json, stdout has a record for each run of a program: task_id, attempt, outcome (done,"
    " failed, buried, cancelled, stale), error, took_ms; of a handler only the totals. With --batch, the"
    " program reads a payload a line, of the tasks in AGENTBUS_TASK_IDS; as many lines of its output are"
    " their results. If it fails, all of them have failed, and each is retried alone."
    " With --worktree, the result is {output, branch, worktree}: what the program printed, the branch that"
    " has its commits, and the worktree if it stays. It is clean if git sees no change (ignored files do"
    " not count), and its commits are on a branch; a branch whose commits are all on another is deleted."
    " A retry goes on in the worktree, or on the branch, that the last attempt left.",
    examples=(
        "agentbus work mail -- ./send-mail.sh",
        "agentbus work thumbnails --concurrency 4 --timeout 60 -- python resize.py",
        "agentbus work --match 'mail*' -- ./send-mail.sh",
        "agentbus work rows --batch 500 -- ./load.sh",
        "agentbus work build --drain --attempts 1 -- ./build.sh",
        "agentbus work mail --handler handlers:send",
        "agentbus work todo --worktree -- claude -p 'Do the task on stdin, and commit.'",
        "agentbus work app:tasks --queues mail,thumbnails --concurrency 4",
    ),
    subject="queue",
    goes_with={"--drain-timeout": ("--drain",), "--keep": ("--worktree",)},
    excludes={
        "--batch": ("--handler", "--match"),
        "--worktree": ("--handler", "--batch", "--reload"),
        "--match": ("--drain", "--drain-timeout", "--count", "--max-tasks-per-child"),
        "--count": ("--processes", "--max-tasks-per-child"),
        "--reload": ("--drain", "--drain-timeout", "--processes", "--max-tasks-per-child"),
    },
    waits="",
)


def run(call: Call) -> int:
    """Run the worker until a signal stops it, and return the exit code."""
    args = call.args
    _together.check(VERB, args)
    names.name("queue", args.queue)
    names.name("group", args.group)
    if bool(args.command) == (args.handler is not None):
        if args.handler is not None:
            raise UsageError("there are both a program and a handler", hint="give one of them")
        if ":" in args.queue and not args.worktree:
            return _typed.run(call)
        raise UsageError(
            "there is nothing to run",
            hint="give a program after --, as in 'work mail -- ./send.sh', or --handler",
        )
    if args.batch is not None and args.concurrency > 1:
        raise UsageError("--batch runs one program at once", hint="give it --processes")
    if args.queues or args.reload:
        raise UsageError(
            f"{'--queues' if args.queues else '--reload'} is for typed tasks",
            hint="name them, as in 'work app:tasks', without a program or --handler",
        )
    if args.handler is not None and args.timeout is not None:
        raise UsageError(
            "--timeout is for programs", hint="a Python handler must limit its own time"
        )
    program = None if args.handler is not None else _program(call)
    share: Share | None = vars(args).get("share")
    if share is None and (args.processes > 1 or args.max_tasks_per_child is not None):
        return _kept(call)
    handling = None if program is None else _handling(call, program)
    handler = _handler(args.handler) if handling is None else handling
    with (
        contextlib.nullcontext() if program is None else contextlib.closing(program),
        _worker_log.logged(call, "work", reports=handling is not None) as log,
    ):
        return _run(call, handler, handling, log)


def _run(call: Call, handler: Callable[..., Any], handling: Handling | None, log: WorkerLog) -> int:
    """Run one worker, and return the exit code."""
    args = call.args
    share: Share | None = vars(args).get("share")
    if handling is None:
        worker = _worker(call, handler, log.middleware(handler))
        program = None
    else:
        worker = _worker(call, handling, ())
        handling.worker, handling.log = worker, log
        program = handling.program
        program.pass_on = log.write if log.shows_tasks else None
    with (
        _working.until_told(worker, program, args.grace, args.drain_timeout) as signals,
        _shown(call, worker, log),
        _working.webhooks(call, lambda: args.drain and not signals) as sent,
    ):
        if share is None:
            _started(call, log)
            _working.tell_of_pauses(call, lambda queue: _is_mine(call.args, queue))
        else:
            share.ready()
        try:
            done = worker.run()
        finally:
            args.noted = {"done": worker.done, "failed": worker.failed}
    webhooks = None if sent is None else sent.count
    if share is not None:
        share.ended(done, worker.failed, webhooks or 0, stopped=bool(signals))
    else:
        _ended(call, log, done, worker.failed, webhooks)
    if handling is not None and handling.reader_gone:
        raise ReaderGone
    if signal.SIGINT in signals:
        return _INTERRUPTED
    if args.drain:
        error = buried_error([(worker.queue, worker.group, getattr(worker, "buried", 0))])
        if error is not None and (share is None or share.number == 1):
            raise error
        if error is not None:
            # The first process has reported the error for all of them.
            return error.exit_code
    return 0


def _handling(call: Call, program: Program) -> Handling:
    if call.args.batch is None:
        return Handling(call, program)
    return BatchHandling(call, program)


def _kept(call: Call) -> int:
    """Run several processes until they have ended, and return the exit code."""
    args = call.args
    with _worker_log.logged(call, "work") as log:
        _started(call, log)
        _working.tell_of_pauses(call, lambda queue: _is_mine(args, queue))
        code, totals = _processes.keep(call)
        args.noted = {"done": totals["done"], "failed": totals["failed"]}
        if totals:
            sent = totals["sent"] if call.settings.webhooks else None
            _ended(call, log, totals["done"], totals["failed"], sent)
    return code


def _started(call: Call, log: WorkerLog) -> None:
    args = call.args
    which = f"the queues {args.queue}" if args.match else word(args.queue)
    log.started(
        f"worker of {which}",
        group=args.group,
        concurrency=args.concurrency,
        **({"processes": args.processes} if args.processes > 1 else {}),
    )


def _ended(call: Call, log: WorkerLog, done: int, failed: int, webhooks: int | None) -> None:
    args = call.args
    of = {"queue": args.queue, "group": args.group}
    log.totals(args.queue, of, done, failed, webhooks, printed=args.handler is not None)


def _worker(
    call: Call, handler: Callable[..., Any], middleware: Sequence[Callable[..., Any]]
) -> Worker | MatchWorker:
    """Return the worker of the queue, or of the matching queues."""
    args = call.args
    options: Any = {
        "group": args.group,
        "concurrency": args.concurrency,
        "attempts": args.attempts,
        "visibility": args.visibility,
        "start": args.start,
        "prefetch": args.concurrency if args.handler is None else None,
        "middleware": middleware,
    }
    for queue, limit in call.bus.runner.policies.limits().items():
        if args.match or queue == args.queue:
            Limits(call.bus.at(queue)).apply({queue: limit})
    if args.match:
        return call.bus.subscribe_many(args.queue, handler, **options)
    if args.batch is not None:
        options |= {"batch": True, "prefetch": args.batch}
    most = args.max_tasks_per_child if args.count is None else args.count
    options |= {"drain": args.drain, "drain_timeout": args.drain_timeout, "count": most}
    return call.bus.subscribe(args.queue, handler, **options)


@contextlib.contextmanager
def _shown(call: Call, worker: Worker | MatchWorker, log: WorkerLog) -> Iterator[None]:
    """Show the progress of a drain on the terminal."""
    args = call.args
    if not args.drain or "share" in vars(args) or not _progress.wanted(call):
        yield
        return
    queue = call.bus.queue(args.queue)

    def left() -> int:
        return int(queue.remaining(args.group))

    def text(left: int) -> str:
        return f"{word(args.queue)}: {worker.done} done, {left} left"

    with _progress.Countdown(left, text) as progress:
        log.aside = progress.aside
        yield
        log.aside = contextlib.nullcontext


def _is_mine(args: Args, queue: str) -> bool:
    return matches(args.queue, queue) if args.match else queue == args.queue


def _program(call: Call) -> Program:
    args, settings = call.args, call.settings
    name = args.command[0]
    if not name or shutil.which(name) is None:
        there = bool(name) and os.path.exists(name)
        error = AgentBusError(
            f"the program {name!r} {'cannot be run' if there else 'does not exist'}",
            hint="correct it; no task was taken",
        )
        error.exit_code = _NOT_EXECUTABLE if there else _NOT_FOUND
        raise error
    # Verbs that the program runs use the same bus, regardless of the flags that named it here.
    same = {"AGENTBUS_PROJECT": settings.project, "AGENTBUS_AGENT": settings.agent}
    if settings.url is not None:
        same["AGENTBUS_URL"] = settings.url
    variables = {**environment(), **same}
    return Program(
        args.command,
        environment=variables,
        timeout=args.timeout,
        limit=settings.max_body,
        warn=call.out.warn,
        worktrees=_worktree.opened(variables, keep=args.keep) if args.worktree else None,
    )


def _handler(path: str) -> Callable[..., Any]:
    """Import the function `module:function`, also from the current directory."""
    function = _working.loaded(path, "handler")
    if not callable(function):
        raise UsageError(f"{path!r} cannot be called", hint="name a function")
    handler: Callable[..., Any] = function
    return handler
