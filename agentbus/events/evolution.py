"""Public import path of the comparison of event schemas."""

from agentbus.events.schema_diff import changes, differences

__all__ = ["changes", "differences"]
