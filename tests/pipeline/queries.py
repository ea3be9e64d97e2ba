"""Runs queries of streams to their end."""

from __future__ import annotations

from typing import Any

from pyspark.errors import StreamingQueryException

_NOT_STARTED = "Python worker failed to connect back"


def completed(writer: Any) -> Any:
    """Start a query that ends by itself, and return it when it has ended.

    Spark gives a source's process 10 s to start, which no setting changes and a busy machine may exceed.
    The query then fails before its first batch, and is started again.
    """
    while True:
        query = writer.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if _NOT_STARTED not in str(error):
                raise
            continue
        return query
