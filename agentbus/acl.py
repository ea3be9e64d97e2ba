"""ACL rules that confine a user of the server to one project: its keys, and the commands it needs."""

from agentbus.admin.acl import *  # noqa: F403
