"""Implements `work --reload`: restarts the worker when a Python file has changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from agentbus.commands import _main, _signals
from agentbus.commands._output import to_stderr
from agentbus.core.errors import UsageError
from agentbus.processes.child import die_with

_INTERRUPTED = 130
_CHILD = "from agentbus.commands import _reload; _reload.work({})"


def run(path: str) -> int:
    """Run the command line without --reload as a child, restarted at changes, until a signal."""
    try:
        from watchfiles import PythonFilter, watch  # needs the extra `reload`
    except ImportError:
        raise UsageError(
            "--reload needs the package 'watchfiles'",
            hint="install the extra 'reload'",
        ) from None
    words = [word for word in sys.argv[1:] if word != "--reload"]
    ended = threading.Event()
    signals: list[int] = []
    child = _started(words)

    def stop(number: int, _frame: object) -> None:
        signals.append(number)
        ended.set()
        # The child is in another process group, so that a terminal's Ctrl-C reaches it only once.
        child.send_signal(number)

    with _signals.heard(stop, *_signals.ENDING, signal.SIGHUP):
        for changes in watch(".", watch_filter=PythonFilter(), stop_event=ended):
            names = sorted({os.path.relpath(name) for _, name in changes})
            more = f" and {len(names) - 1} more" if names[1:] else ""
            child.terminate()
            child.wait()
            if ended.is_set():
                break
            to_stderr(f"agentbus: {names[0]}{more} changed; starting {path} again\n")
            child = _started(words)
        child.wait()
    return _INTERRUPTED if signal.SIGINT in signals else 0


def _started(words: list[str]) -> subprocess.Popen[bytes]:
    # Run without bytecode, which is stale for a file that changes twice in a second without
    # changing its size.
    command = [sys.executable, "-B", "-c", _CHILD.format(os.getpid()), *words]
    return subprocess.Popen(command, process_group=0)


def work(parent: int) -> None:
    """Run the command line as a child process, and exit when the parent is killed."""
    die_with(parent)
    _main.main()
