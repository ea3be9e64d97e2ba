"""The pages, in the order of the navigation; `page.py` explains how to add one."""

from __future__ import annotations

from agentbus.dashboard.web.page import TextFile, WebPage
from agentbus.dashboard.web.pages import (
    agents,
    archive,
    events,
    flags,
    flows,
    health,
    letters,
    limits,
    notes,
    overview,
    queues,
    schedules,
    search,
    talk,
    task,
    tasks,
    workers,
)

PAGES: tuple[WebPage, ...] = (
    overview.PAGE,
    agents.PAGE,
    agents.ONE,
    talk.PAGE,
    talk.MESSAGE,
    talk.DIRECT,
    talk.THREAD,
    flags.PAGE,
    queues.PAGE,
    queues.ONE,
    tasks.PAGE,
    task.PAGE,
    letters.PAGE,
    letters.ERROR,
    letters.ONE,
    search.PAGE,
    flows.PAGE,
    flows.ONE,
    schedules.PAGE,
    limits.PAGE,
    workers.PAGE,
    events.PAGE,
    notes.PAGE,
    health.PAGE,
    archive.PAGE,
)
# Texts that are too long to show on a page.
TEXTS: tuple[TextFile, ...] = (
    talk.TEXT,
    notes.TEXT,
    *(task.PAYLOAD, task.RESULT, letters.PAYLOAD, letters.TRACEBACK),
)
