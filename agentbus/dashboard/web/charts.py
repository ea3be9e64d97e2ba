"""Draws charts as SVG on the server, each with its figures as text for screen readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from agentbus.core.readable import number
from agentbus.dashboard.figures import POINT

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 90, 20


def spark(points: Sequence[float]) -> Markup:
    """Return a small line chart of rates, one point per 20 seconds, oldest first."""
    if not any(points):
        return Markup('<span class="none">-</span>')
    most, last = max(points), len(points) - 1
    places = " ".join(
        f"{at * _WIDTH / max(1, last):.1f},{_HEIGHT - 1 - (_HEIGHT - 2) * value / most:.1f}"
        for at, value in enumerate(points)
    )
    minutes = len(points) * POINT / 60
    said = f"up to {number(most)} a second over {minutes:.0f} minutes, now {number(points[-1])}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{said}">'
        '<polyline points="{places}"/></svg>'
    ).format(w=_WIDTH, h=_HEIGHT, said=said, places=places)
