"""ACL rules that confine a user of the server to one project: its keys and the necessary commands."""

from agentbus.admin.acl import *  # noqa: F403
