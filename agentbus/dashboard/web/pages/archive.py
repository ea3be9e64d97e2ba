"""The pages that `agentbus report --html` has written into the directory of reports."""

from __future__ import annotations

import asyncio
from typing import Any

from agentbus.core.errors import NotFound
from agentbus.dashboard import report_files
from agentbus.dashboard.web.page import PageView, WebPage


async def load(view: PageView) -> dict[str, Any]:
    """Return the reports of the directory, newest first."""
    directory = view.context.reports
    if directory is None:
        return {"directory": None, "files": []}
    files = await asyncio.to_thread(report_files.listed, directory)
    if view.match is not None:
        files = [one for one in files if view.match.casefold() in one.name.casefold()]
    first = view.rows.offset
    shown = files[first : first + view.rows.limit]
    return {"directory": directory, "files": shown, "matching": len(files)}


async def report(view: PageView) -> bytes:
    """Return the report `name`. Raises `NotFound`."""
    directory = view.context.reports
    if directory is None:
        raise NotFound("no directory of reports is configured", hint="the archive page says how")
    return await asyncio.to_thread(report_files.read, directory, view.param("name"))


PAGE = WebPage("archive", "Archive", load)
