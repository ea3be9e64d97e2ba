"""Archiving, by the name that programs import."""

from agentbus.pipeline.archives.archiver import Archiver, archive, release

__all__ = ["Archiver", "archive", "release"]
