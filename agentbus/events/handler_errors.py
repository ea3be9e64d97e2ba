"""Distinguishes the errors of a consumer's handlers from those of the consumer itself."""

from __future__ import annotations

from sqlalchemy import exc

_LONGEST_ERROR = 2000


class HandlerError(Exception):
    """An error of a handler, as opposed to our own; the cause is the handler's exception."""


def handlers_error(error: HandlerError) -> BaseException:
    """Return a handler's exception; raise it if the database connection was lost."""
    cause = error.__cause__ or error
    if isinstance(cause, exc.DBAPIError) and cause.connection_invalidated:
        raise cause from None
    return cause


def error_text(error: BaseException) -> str:
    """Return an error's type and message as text that every database can hold."""
    text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR].replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()
