"""Refuses to wait where a library runs all of a program's threads as greenlets."""

from __future__ import annotations

import sys

from agentbus.core.errors import UsageError


def check(what: str) -> None:
    """Raise `UsageError` if gevent or eventlet has replaced the sockets of this program.

    Both replace what Python code calls, while a wait for the server is in C: no other greenlet would run
    until it ends. `what` names the wait.
    """
    patchers = (
        ("gevent", "gevent.monkey", "is_module_patched"),
        ("eventlet", "eventlet.patcher", "is_monkey_patched"),
    )
    for library, module, question in patchers:
        patcher = sys.modules.get(module)
        if patcher is not None and getattr(patcher, question)("socket"):
            raise UsageError(
                f"{what} would stop all greenlets, since {library} has patched this program's sockets",
                hint="do it in a process without the patches; verbs that do not wait work as always",
            )
