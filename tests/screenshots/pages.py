"""Every page of the dashboard with something on it: the path of a look at each, in the demo project."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

if TYPE_CHECKING:
    from tests.screenshots.demo import Demo


# The looks, in the order of the navigation.
NAMES = (*("overview", "queues", "queue"),)


def looks(project: Demo) -> dict[str, str]:
    """Return the path of a look at each page, by a name for its picture."""

    def at(page: str, **query: object) -> str:
        return f"/{page}" + (f"?{urlencode(query)}" if query else "")

    return {
        "overview": "/",
        "queues": at("queues"),
        "queue": at("queue", name="mail"),
    }
