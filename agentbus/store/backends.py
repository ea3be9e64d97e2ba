"""Chooses the backend that the settings name; without a URL, the embedded server."""

from __future__ import annotations

from agentbus.core.settings import socket_path
from agentbus.store.backend import Backend
from agentbus.store.scope import Scope
from agentbus.store.target import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.core.settings import Settings


_EMBEDDED_ADVICE = (
    "see 'agentbus server status' and its log; 'agentbus server repair' repairs a damaged file"
)


def enter(settings: Settings) -> tuple[Backend, Scope]:
    """Return the backend that the settings name, and the scope of operations on it."""
    project = settings.project
    if settings.url is None:
        target = Target(path=socket_path())
        chosen = Backend("the embedded server", lambda _within: target, revive=_start)
        chosen.advice = _EMBEDDED_ADVICE
    else:
        from agentbus.store.schemes import backend

        chosen = backend(settings.url, project)
    if chosen.wraps and not project.startswith("{"):
        project = f"{{{project}}}"
    return chosen, Scope(
        project, settings.agent, max_body=settings.max_body, webhooks=settings.webhooks
    )


def _start(within: float) -> None:
    from agentbus.store.embedded.launch import ensure

    ensure(within)
