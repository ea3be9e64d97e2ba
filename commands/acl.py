"""acl: the rule that confines a user of the server to this project."""

from __future__ import annotations

import os

from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "acl",
    "Print the rule that confines a user of the server to this project.",
    Param(
        "user",
        "--user",
        metavar="NAME",
        help="The user's name (that of the project).",
    ),
    Param("read_only", "--read-only", flag=True, help="Let the user look, and change nothing."),
    Param("file", "--file", flag=True, help="Print the line of an ACL file instead."),
    Param(
        "password_stdin",
        "--password-stdin",
        flag=True,
        help="Read a password from stdin; only its digest is printed.",
    ),
    text="It is a command for redis-cli, to be run by somebody who may make users. The user can do"
    " every verb in this project, and nothing in another. No password is printed; without"
    " --password-stdin the user's passwords stay as they are, and a new user has none. It asks no"
    " server. JSON: user, project, read_only, rule (its words, in order).",
    examples=(
        "agentbus acl --project shop | redis-cli -h bus.example.org",
        "openssl rand -hex 32 | tee shop.password | agentbus acl --password-stdin",
        "agentbus acl --user watcher --read-only --file >> users.acl",
    ),
    local=True,
)


def run(call: Call) -> None:
    """Print the rule."""
    from agentbus.admin.acl import rule

    # Nothing is opened: the URL tells whether the keys lie on a cluster.
    args, bus = call.args, call.bus
    found = rule(
        bus.project,
        user=args.user,
        read_only=args.read_only,
        cluster=bus.backend.wraps,
        password=_password() if args.password_stdin else None,
    )
    call.out.record(
        {
            "user": found.user,
            "project": found.project,
            "read_only": found.read_only,
            "rule": found.words,
        },
        found.line() if args.file else found.command(),
    )
    if not args.password_stdin:
        call.out.warn(
            f"there is no password in it: a user {found.user!a} who has none cannot log in;"
            " --password-stdin reads one and prints its digest"
        )


def _password() -> str:
    """Read a password from stdin; on a terminal it is not shown."""
    if os.isatty(0):
        from getpass import getpass

        return getpass()
    from agentbus.commands._body import fetched
    from agentbus.core.names import MAX_BODY_BYTES

    return fetched("password", "-", MAX_BODY_BYTES, None).rstrip("\r\n")
