"""Backends: what a package needs to register one for a URL scheme."""

from agentbus.store.connection import Backend, Target
from agentbus.store.url import Url

__all__ = ["Backend", "Target", "Url"]
