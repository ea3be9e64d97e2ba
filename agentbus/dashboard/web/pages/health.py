"""Every health check with its thresholds, its value, and the remedies of its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.readable import age
from agentbus.dashboard.web.page import PageView, WebPage

if TYPE_CHECKING:
    from agentbus.dashboard.check_list import HealthCheck


async def load(view: PageView) -> dict[str, Any]:
    """Return the checks, those with findings first."""
    found = await view.reader.checks()
    return {
        "found": found,
        "limits": {
            one.check: (limit(one, one.warning), limit(one, one.critical)) for one in found.checks
        },
        "limit": limit,
    }


def limit(check: HealthCheck, figure: float | None) -> str:
    """Return a threshold or figure of a check with its unit."""
    if figure is None:
        return "-"
    if check.unit == "of its limit":
        return f"{figure:.0%} of its limit"
    if check.unit in ("seconds", "ms"):
        return age(figure / 1000 if check.unit == "ms" else figure) if figure else "0 s"
    unit = check.unit.removesuffix("s") if figure == 1 else check.unit
    return f"{figure:,.10g} {unit}".strip()


PAGE = WebPage("health", "Health", load, live=("checks",))
