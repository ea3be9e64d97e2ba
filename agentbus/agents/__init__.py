"""Integrations for coding agents: the MCP server, hooks, and their installation."""
