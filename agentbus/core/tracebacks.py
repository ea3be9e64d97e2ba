"""The traceback of an error of a handler, without the frames of the library that called it."""

from __future__ import annotations

import traceback
from types import TracebackType

_PACKAGE = __name__.partition(".")[0]


def outside(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame that is not the library's.

    An error that the library itself has raised keeps its whole traceback.
    """
    frame = error.__traceback__
    while frame is not None:
        module = frame.tb_frame.f_globals.get("__name__")
        if not isinstance(module, str) or module.partition(".")[0] != _PACKAGE:
            return frame
        frame = frame.tb_next
    return error.__traceback__


def shown(error: BaseException) -> str:
    """Return the traceback of an error as text; the output of a program that failed, in its place."""
    # Not `output`, which errors of `subprocess` have, too.
    output = getattr(error, "program_output", None)
    if isinstance(output, str):
        return output
    return "".join(traceback.format_exception(type(error), error, outside(error)))
