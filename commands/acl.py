"""acl: print the ACL rule that confines a user of the server to this project."""

from __future__ import annotations

import os
from getpass import getpass

from agentbus.admin.acl import rule
from agentbus.commands import _together, _values
from agentbus.commands._body import fetched
from agentbus.commands._declare import Call, Param, Verb
from agentbus.core.names import MAX_BODY_BYTES

VERB = Verb(
    "acl",
    Param("--user NAME", "The user's name (default: the project's)."),
    Param("--read-only", "Grant read access only, and no scripts, as --functions."),
    Param(
        "--role ROLE",
        "publisher: talk, publish and read results, but take and settle no tasks; worker: all, as without.",
        choices=("publisher", "worker"),
    ),
    Param(
        "--functions", "Grant no scripts, but the functions that 'agentbus server load' has loaded."
    ),
    Param("--file", "Print a line for an ACL file instead of a command."),
    Param("--password-stdin", "Read a password from stdin; only its digest is printed."),
    text="Prints a command for redis-cli, to be run by an administrator. The user can run every verb in"
    " this project, and nothing in another. No password is printed; without --password-stdin the"
    " user's passwords stay as they are, and a new user has none. No server is contacted. JSON:"
    " user, project, read_only, role, functions, rule (its words, in order).",
    examples=(
        "agentbus acl --project shop | redis-cli --tls -h bus.example.org",
        "agentbus acl --password-stdin < shop.password | redis-cli --tls -h bus.example.org",
        "agentbus acl --user watcher --read-only --file >> users.acl",
        "agentbus acl --user ci --role publisher | redis-cli --tls -h bus.example.org",
    ),
    excludes={"--role": ("--read-only",)},
)


def run(call: Call) -> None:
    """Print the rule."""
    args, bus = call.args, call.bus
    _together.check(VERB, args)
    # The rule needs no connection: the URL shows whether the server is a cluster.
    access = rule(
        bus.project,
        user=args.user,
        read_only=args.read_only,
        role=args.role,
        functions=args.functions,
        cluster=bus.backend.wraps,
        password=_password() if args.password_stdin else None,
    )
    fields = _values.fields(access, "user", "project", "read_only", "role", "functions") | {
        "rule": access.words
    }
    call.out.record(fields, access.line() if args.file else access.command())
    if not args.password_stdin:
        call.out.warn(
            f"the rule has no password: a user {access.user!a} without one cannot log in;"
            " --password-stdin reads one and prints its digest"
        )


def _password() -> str:
    """Read a password from stdin, without echo on a terminal."""
    if os.isatty(0):
        return getpass()
    return fetched("password", "-", MAX_BODY_BYTES, None).rstrip("\r\n")
