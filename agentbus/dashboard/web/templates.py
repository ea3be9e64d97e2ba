"""Renders the templates of pages, in whole or the live regions. Every value is escaped."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agentbus.coordination.leases import shown
from agentbus.core.clock import rfc3339
from agentbus.core.escape import escaped
from agentbus.core.names import word
from agentbus.core.readable import age, count, cut, number
from agentbus.core.shell_command import typed
from agentbus.dashboard.check_list import ABOUT
from agentbus.dashboard.web import charts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentbus.admin.health import HealthFinding
    from agentbus.dashboard.web.page import PageView

# Maximum bytes of a payload or a message that a page shows.
FOLDED = 4_096
# Seconds after which a time is shown with its day.
_DAY = 20 * 3600.0
# The checks whose findings are about a queue, and the pages that show the subjects of others.
_OF_QUEUES = frozenset(
    ("pending", "idle", "lag", "starving", "no_worker", "dead_worker", "full", "stuck")
)
_CURED_ON = {
    **dict.fromkeys(("lag_ms", "lag_events", "unknown_events", "silent", "quarantined"), "events"),
    "overdue": "schedules",
    "holder_gone": "flags",
}
_AFTER = re.compile("([:/])")
# The regions that every page has, from base.html.
BASE = ("verdict", "pulse")


@cache
def page_templates() -> PageTemplates:
    """Return the templates, which all applications of a process share."""
    return PageTemplates()


class PageTemplates:
    """The templates, compiled once."""

    def __init__(self) -> None:
        self._jinja = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._jinja.filters |= {
            "age": age,
            "count": count,
            "cut": cut,
            "figure": _figure,
            "folded": folded,
            "lines": lines,
            "name": word,
            "number": number,
            "parts": _parts,
            "pattern": shown,
            "span": span,
            "stamp": _stamp,
            "text": escaped,
            "utc": _utc,
        }
        self._jinja.globals |= {
            "spark": charts.spark,
            "abouts": ABOUT,
            "cure": _cure,
            "typed": typed,
            "finding_figure": _finding_figure,
        }
        self._jinja.globals["ui"] = self._jinja.get_template("parts.html").module
        self._jinja.globals["talk"] = self._jinja.get_template("talk_parts.html").module

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """Return a whole page."""
        return self._jinja.get_template(name).render(values)

    def regions(
        self, name: str, wanted: Iterable[str], values: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the HTML of a page's regions, and of regions that all pages have, by id."""
        found: dict[str, str] = {}
        for template, ids in (("base.html", BASE), (name, wanted)):
            page = self._jinja.get_template(template)
            context = page.new_context(dict(values))
            found |= {one: "".join(page.blocks[one](context)) for one in ids}
        return found

    def part(self, macro: str, *values: object) -> str:
        """Return the result of a macro of parts.html."""
        module: Any = self._jinja.globals["ui"]
        return str(getattr(module, macro)(*values))


def folded(text: str) -> str:
    """Return text cut to a few kilobytes, without characters that move or reverse others."""
    return lines(text if len(text) <= FOLDED else text[:FOLDED] + "…")


def lines(text: str) -> str:
    """Return text without characters that move or reverse others; line breaks stay."""
    return "\n".join(escaped(line) for line in text.replace("\r\n", "\n").split("\n"))


def span(seconds: float | None) -> str:
    """Format an age or a duration: in whole seconds, above a minute in minutes.

    A page with a hundred durations therefore does not change every second.
    """
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    return f"{whole}s" if whole < 60 else age(float(whole - whole % 60))


def _parts(name: str) -> Markup:
    """Return a worker's name, in which a line breaks after `:` and `/` alone."""
    words = _AFTER.sub("\\1\n", word(name)).splitlines()
    return Markup("<wbr>").join(Markup('<span class="part">{}</span>').format(one) for one in words)


def _cure(view: PageView, finding: HealthFinding) -> str:
    """Return the link to the page where a finding is cured; '' if there is none."""
    queue = finding.subject.partition("/")[0]
    if finding.check in _OF_QUEUES:
        return view.link("queue", name=queue)
    if finding.check == "dead_letters":
        return view.link("letters", queue=queue)
    page = _CURED_ON.get(finding.check)
    return view.link(page) if page else ""


def _finding_figure(finding: HealthFinding) -> str:
    """Return the figure of a finding with its unit, if it is not a number of tasks."""
    figure, unit = finding.figure or 0.0, ABOUT.get(finding.check, ("", ""))[1]
    if unit in ("seconds", "ms"):
        return age(figure / 1000 if unit == "ms" else figure)
    return f"{figure:.0%}" if unit == "of its limit" else f"{figure:,.10g}"


def _figure(value: float | None) -> str:
    """Format a number as a whole number with separators."""
    return "-" if value is None else f"{value:,}"


def _utc(seconds: float) -> str:
    """Format a unix time for machines, and for tooltips."""
    return rfc3339(seconds, milliseconds=True)


def _stamp(seconds: float | None, now: float | None = None) -> Markup:
    """Return an HTML time element: UTC, with the date if it is another day, or the age at `now`."""
    if seconds is None:
        return Markup('<span class="none">-</span>')
    utc = rfc3339(seconds)
    if now is not None:
        said = span(now - seconds)
    else:
        said = utc[11:19] if abs(time() - seconds) < _DAY else utc[:16].replace("T", " ")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(utc, said)
