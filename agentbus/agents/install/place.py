"""The place of an installation: a program, a scope, and the directory where it was called."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from agentbus.agents.install import folder
from agentbus.agents.install.folder import InstallRecord
from agentbus.core.settings import home, repository, variable as read_variable


@dataclass
class Installation:
    """The place of an installation; `root` is that of the repository, or the current directory."""

    program: str
    scope: str = "user"
    record: InstallRecord = field(default_factory=InstallRecord)

    def __post_init__(self) -> None:
        self.folder = folder.folder()
        found, _ = repository()
        self.in_repository = found is not None
        self.root = found or os.getcwd()

    def entry(self, client: str) -> str:
        """Return the key of a client's installation in the record."""
        if self.scope == "project" or client in ("agents-md", "git"):
            return f"{client} project {self.root}"
        return f"{client} user"

    def config(self, variable: str, *default: str) -> str:
        """Return a directory of the user's settings, which a variable may name."""
        base = read_variable(variable) or ""
        return base if os.path.isabs(base) else os.path.join(home(), *default)
