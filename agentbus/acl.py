"""The rule by which a server confines a user to one project: the keys and the commands it needs."""

from agentbus.admin.acl import *  # noqa: F403
