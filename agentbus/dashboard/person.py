"""The person who acts in a dashboard: an agent `human:<name>`, whose actions are logged."""

from __future__ import annotations

import copy
import os
import pwd
from typing import TYPE_CHECKING

from agentbus.core import names
from agentbus.core.oplog import write as log_entry
from agentbus.core.person_name import check_session
from agentbus.core.settings import environment, state_directory

if TYPE_CHECKING:
    from agentbus.core.settings import Settings

# The topic of messages about a person's actions.
TOPIC = "coordination"


def acting(settings: Settings, name: str | None, *, write: bool = True) -> Settings:
    """Return these settings with the agent `human:<name>`; by default the user of the system.

    Raises `InvalidName`, also where an agent would act in a person's name.
    """
    found = copy.copy(settings)
    found.agent = names.name("agent", f"human:{name or _user()}")
    found.peers = ""
    if write:
        check_session(found.agent, environment(), state_directory())
    return found


def log(settings: Settings, view: str, action: str, outcome: str, level: str = "info") -> None:
    """Record a person's action in a view in the operations log."""
    fields = {"verb": view, "agent": settings.agent, "project": settings.project}
    log_entry(level, settings.log_level, {**fields, "action": action, "outcome": outcome})


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
