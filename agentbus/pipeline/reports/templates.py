"""Templates of the page: values are escaped, and their control characters made visible."""

from __future__ import annotations

import base64
import functools
import hashlib
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from agentbus.pipeline.reports import wording


@functools.cache
def template(name: str) -> Template:
    """Return a template of this package."""
    environment = Environment(
        loader=PackageLoader("agentbus.pipeline.reports", ""),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": lambda value, column, unmeasured: wording.cell(column, value, unmeasured),
        "cut": wording.cut,
        "digest": _digest,
        "duration": wording.duration,
        "heading": wording.heading,
        "number": wording.number,
        "second": _second,
        "tenths": "{:.1f}".format,
    }
    return environment.get_template(name)


def _printable(value: Any) -> Any:
    """Replace the control characters of an inserted value, unless it is already markup."""
    data = isinstance(value, str) and not isinstance(value, Markup)
    return wording.printable(value) if data else value


def _digest(text: str) -> str:
    """Return the hash with which a policy allows a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _second(at: datetime) -> str:
    return wording.moment(at.replace(microsecond=0))
