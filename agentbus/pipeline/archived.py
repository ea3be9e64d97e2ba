"""Reading an archive, by the name that programs import."""

from agentbus.pipeline.archives.reader import read

__all__ = ["read"]
