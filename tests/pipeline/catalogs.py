"""Runs the statements of docs/how-to/catalogs.md for DuckDB over the archive of its argument."""

from __future__ import annotations

import json
import sys

from tests.pipeline.engines import duckdb

path, database, documented = sys.argv[1:]
connection = duckdb()
connection.execute(f"ATTACH '{database}' AS kept; USE kept")
# The packages of the tests bring the extension.
answers = [
    connection.execute(statement.replace("/data/bus", path)).fetchall()
    for statement in map(str.strip, documented.split(";"))
    if statement and not statement.startswith(("INSTALL", "LOAD"))
]
connection.execute("USE memory; DETACH kept")
connection.execute(f"ATTACH '{database}' AS kept; USE kept")
answers.append(connection.execute("SELECT count(*) FROM entries").fetchall())
connection.execute(f"ATTACH '{path}' AS bus (TYPE delta)")
answers.append(connection.execute("SELECT count(*) FROM bus WHERE kind <> 'position'").fetchall())
sys.stdout.write(json.dumps(answers, default=str))
