"""Pictures of `agentbus top`: what it draws on a terminal of a given size, as SVG."""

from __future__ import annotations

import io
import pathlib
import re
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.terminal_theme import MONOKAI

from agentbus.commands._top_view import View
from agentbus.dashboard import Dashboard

if TYPE_CHECKING:
    from tests.screenshots.demo import Demo

# rich links a font of a third party; every system has one of its own.
_FONTS = re.compile(r"@font-face\s*\{[^}]*\}\s*")


def picture(
    project: Demo, path: pathlib.Path, keys: str = "", *, width: int = 120, height: int = 34
) -> pathlib.Path:
    """Draw the view after some keys were pressed, and write it to a file."""
    bus = project.own_bus("human:maria")
    dashboard, view = Dashboard(bus), View(1.0)
    for key in ("", *keys):
        if key:
            view.press(key)
        wanted = view.wanted(height)
        view.frame(dashboard.snapshot(**wanted.rows), None, [])
    lines = view.draw(width, height, project.clock.now())
    console = Console(
        record=True,
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Group(*lines))
    drawn = console.export_svg(title="agentbus top", theme=MONOKAI, unique_id="top")
    path.write_text(_FONTS.sub("", drawn))
    return path
