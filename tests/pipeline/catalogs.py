"""Runs the statements of docs/how-to/catalogs.md for DuckDB over the archive of its argument."""

from __future__ import annotations

import json
import sys

import duckdb as duck

from tests.pipeline.engines import duckdb

path, database, documented = sys.argv[1:]
connection = duckdb()
connection.execute(f"ATTACH '{database}' AS kept; USE kept")
answers = []
for statement in documented.split(";"):
    # The packages of the tests bring the extension.
    if statement.strip() and not statement.strip().startswith(("INSTALL", "LOAD")):
        answers.append(connection.execute(statement.replace("/data/bus", path)).fetchall())
connection.execute("USE memory; DETACH kept")
connection.execute(f"ATTACH '{database}' AS kept; USE kept")
answers.append(connection.execute("SELECT count(*) FROM entries").fetchall())
connection.execute(f"ATTACH '{path}' AS bus (TYPE delta)")
answers.append(connection.execute("SELECT count(*) FROM bus WHERE kind <> 'position'").fetchall())
print(json.dumps(answers, default=str))
assert duck.__version__
