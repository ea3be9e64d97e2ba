"""The pages, in the order of the navigation; `page.py` says how to add one."""

from __future__ import annotations

from agentbus.dashboard.web.page import TextFile, WebPage
from agentbus.dashboard.web.pages import letters, overview, queues, search, task

PAGES: tuple[WebPage, ...] = (
    overview.PAGE,
    queues.PAGE,
    queues.ONE,
    task.PAGE,
    letters.PAGE,
    letters.ERROR,
    letters.ONE,
    search.PAGE,
)
# What is too long for a page.
TEXTS: tuple[TextFile, ...] = (task.PAYLOAD, task.RESULT, letters.PAYLOAD, letters.TRACEBACK)
