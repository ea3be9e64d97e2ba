"""Write an archive: the public name of `archives.archiver`."""

from agentbus.pipeline.archives.archiver import Archiver, archive, release

__all__ = ["Archiver", "archive", "release"]
