"""The pages, in the order of the navigation; `page.py` says how to add one."""

from __future__ import annotations

from agentbus.dashboard.web.page import TextFile, WebPage
from agentbus.dashboard.web.pages import overview, queues

PAGES: tuple[WebPage, ...] = (
    overview.PAGE,
    queues.PAGE,
    queues.ONE,
)
# What is too long for a page.
TEXTS: tuple[TextFile, ...] = ()
