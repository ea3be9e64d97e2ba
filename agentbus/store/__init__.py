"""Connections to the server, and the steps, scripts, drivers and backends that use them."""
