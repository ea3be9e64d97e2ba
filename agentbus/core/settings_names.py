"""The names of the settings: their environment variables, and where each may be set."""

from __future__ import annotations

ON = ("1", "true", "yes", "on")
LOG_LEVELS = ("debug", "info", "warning", "error", "off")
# setting: the environment variables that set it, first found wins.
VARIABLES = {
    "agent": ("AGENTBUS_AGENT", "AGENT_ID"),
    "project": ("AGENTBUS_PROJECT", "PROJECT_PREFIX"),
    "url": ("AGENTBUS_URL", "REDIS_URL"),
    "json": ("AGENTBUS_JSON",),
    "log_level": ("AGENTBUS_LOG_LEVEL",),
    "log": ("AGENTBUS_LOG",),
    "config": ("AGENTBUS_CONFIG",),
    "deadline": ("AGENTBUS_DEADLINE",),
    "max_body": ("AGENTBUS_MAX_BODY",),
    "server": ("AGENTBUS_SERVER",),
    "database": ("AGENTBUS_DATABASE",),
    "webhooks": ("AGENTBUS_WEBHOOKS",),
    "webhook_secret": ("AGENTBUS_WEBHOOK_SECRET",),
    "webhook_allow": ("AGENTBUS_WEBHOOK_ALLOW",),
    "queues": (),
    "health": (),
}
# What any config file may set. A file in a repository must not choose the log's path or the server's
# program.
IN_FILES = (
    *("agent", "project", "url", "json", "log_level", "deadline", "max_body"),
    *("queues", "health"),
)
# What only the user's own file, or one chosen by --config, may set beside these: a repository must not
# send results to the network, outside or inside, nor name a file to write to.
IN_OWN_FILE = ("database", "webhooks", "webhook_secret", "webhook_allow")
