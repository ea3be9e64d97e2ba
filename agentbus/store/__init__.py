"""Connections to the server and what runs over them: steps, scripts, drivers, backends."""
