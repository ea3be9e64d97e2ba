"""The log of an archive, under the name that programs import."""

from agentbus.pipeline.archives.versions import CommitConflict

__all__ = ["CommitConflict"]
