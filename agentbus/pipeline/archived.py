"""Read an archive: the public name of `archives.reader`."""

from agentbus.pipeline.archives.reader import read

__all__ = ["read"]
