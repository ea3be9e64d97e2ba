"""Loads the modules that quick-path modules import only when needed.

A shell command does without most of them. A program that connects loads all of them at once: otherwise, a
child that is forked while another thread imports a module would inherit that import's lock, and hang when
it first used the module.
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
    """Load these modules."""
    for name in _MODULES:
        importlib.import_module(name)
