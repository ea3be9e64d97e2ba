"""What coding agents plug in: the MCP server, hooks, and their installation."""
