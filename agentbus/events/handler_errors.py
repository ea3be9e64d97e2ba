"""The errors of a consumer's handlers, told from those of the consumer itself."""

from __future__ import annotations

from sqlalchemy import exc

_LONGEST_ERROR = 2000


class HandlerError(Exception):
    """A handler failed: this class tells its errors from our own, and the cause is the handler's error."""


def handlers_error(error: HandlerError) -> BaseException:
    """Return the error of a handler; raise it if the database's connection was lost."""
    cause = error.__cause__ or error
    if isinstance(cause, exc.DBAPIError) and cause.connection_invalidated:
        raise cause from None
    return cause


def error_text(error: BaseException) -> str:
    """Return an error's type and message as text that every database can hold."""
    text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR].replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()
