"""The pages of `agentbus web`, an ASGI application; only this package imports Starlette and Jinja2."""

from __future__ import annotations

from agentbus.dashboard.web.app import application

__all__ = ["application"]
