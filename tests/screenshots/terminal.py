"""Pictures of terminals as SVG: what `agentbus top` draws, and a page's commands with their output."""

from __future__ import annotations

import io
import pathlib
import re
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.terminal_theme import MONOKAI
from rich.text import Text

from agentbus.commands._top_view import View
from agentbus.dashboard import Dashboard
from tests.pages import blocks

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
    return _save(Group(*lines), path, "agentbus top", width, height)


def session(page: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Draw the commands of a page's first terminal with what they print, as the tests hold them to."""
    shown = Text()
    for block in blocks(page):
        if block.language != "console" or block.marks:
            continue
        for command, output in block.commands():
            shown.append("$ ", "bold green").append(f"{command}\n", "bold").append(output)
    shown.rstrip()
    lines = shown.split()
    return _save(shown, path, "bash", max(map(len, lines)), len(lines))


def _save(
    drawn: RenderableType, path: pathlib.Path, title: str, width: int, height: int
) -> pathlib.Path:
    console = Console(
        record=True,
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(drawn)
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id=path.stem)
    path.write_text(_FONTS.sub("", svg))
    return path
