"""Every page of the dashboard with something on it: the path of a look at each, in the demo project."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tests.screenshots.demo_talk import BADGER, HERON

if TYPE_CHECKING:
    from tests.screenshots.demo import Demo

# The looks, in the order of the navigation.
NAMES = (
    *(
        "overview",
        "agents",
        "agent",
        "talk",
        "spoken",
        "direct",
        "thread",
        "flags",
        "queues",
        "queue",
    ),
    *(
        "tasks",
        "task",
        "letters",
        "error",
        "letter",
        "search",
        "flows",
        "flow",
        "schedules",
        "limits",
        "workers",
        "events",
        "notes",
        "health",
        "archive",
    ),
)


def looks(project: Demo) -> dict[str, str]:
    """Return the path of a look at each page, by a name for its picture."""

    def at(page: str, **query: object) -> str:
        return f"/{page}" + (f"?{urlencode(query)}" if query else "")

    bus = project.bus(BADGER)
    letter, *_ = bus.queue("mail").dead_letters()
    spoken = next(one for one in bus.overhear(last=50) if one.agent_id == BADGER)
    found = {
        "overview": "/",
        "agents": at("agents"),
        "agent": at("agent", name=HERON),
        "talk": at("talk"),
        "spoken": at("spoken", id=spoken.id),
        "direct": at("direct"),
        "thread": at("thread", id=project.thread),
        "flags": at("flags"),
        "queues": at("queues"),
        "queue": at("queue", name="thumbnails", state="dead"),
        "task": at("task", id=project.released),
        "letters": at("letters"),
        "error": at("letters-error", error=letter.error),
        "letter": at("letter", queue="mail", group="default", id=letter.id),
        "search": at("search", text="connection refused"),
        "flows": at("flows"),
        "flow": at("flow", id="order-48260"),
        "schedules": at("schedules"),
        "limits": at("limits"),
        "tasks": at("tasks"),
        "workers": at("workers"),
        "events": at("events"),
        "notes": at("notes"),
        "health": at("health"),
        "archive": at("archive"),
    }
    return {name: found[name] for name in NAMES}
