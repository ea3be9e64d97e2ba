"""Publishes rows of an archive again."""

from __future__ import annotations

from agentbus.core.lazy import lazily

__all__ = ["ReplayResult", "Replayed"]
__getattr__ = lazily(__name__, {"ReplayResult": "replay", "Replayed": "replay"})
