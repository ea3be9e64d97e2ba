"""Loads what the modules of the quick path import only when they need it.

A shell verb does without most of it. A program that connects loads all of it at once: a child that is
forked while another thread imports a module inherits the lock of that import, and hangs when it first uses
the module.
"""

from __future__ import annotations

import importlib

_MODULES = (
    *("hashlib", "json", "pwd", "socket", "subprocess", "urllib.parse"),
    *("agentbus.coordination.message", "agentbus.coordination.waiters"),
    *("agentbus.core.agent_name", "agentbus.core.client_session", "agentbus.core.config_file"),
    *("agentbus.core.escape", "agentbus.core.repository", "agentbus.core.running"),
    *("agentbus.core.settings_check", "agentbus.core.socket_place", "agentbus.core.timespec"),
    *("agentbus.store.async_connection", "agentbus.store.durable"),
    *("agentbus.store.embedded.disk", "agentbus.store.embedded.launch"),
    *("agentbus.store.failures", "agentbus.store.functions", "agentbus.store.hiredis_reader"),
    *("agentbus.store.logged", "agentbus.store.peer", "agentbus.store.registered"),
    *("agentbus.store.scan", "agentbus.store.schemes", "agentbus.store.tcp"),
)


def load() -> None:
    """Load them."""
    for name in _MODULES:
        importlib.import_module(name)
