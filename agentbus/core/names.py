"""Checks names and bodies, escapes names for composite keys, and names the project of a repository.

A name is data: it is never a pattern, a separator or a shell word. Invalid values are refused before
anything is sent.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.core.errors import InvalidName, InvalidPayload

MAX_NAME_BYTES = 256
MAX_PROJECT_BYTES = 128
MAX_BODY_BYTES = 256 * 1024
# Number of entries that the channel keeps by default, approximately.
CHANNEL_BOUND = 10_000
# Maximum number of tags, or of awaited flags, in one call.
MOST_AT_ONCE = 1_000
# The states of an agent's presence.
STATES = ("active", "idle", "waiting", "gone")
LOG_LEVELS = ("debug", "info", "warning", "error", "off")

# Words that follow the project in a key. Later segments of a project's name may not be one of these
# words, so that no key of `app` can be mistaken for a key of `app:x`, or the reverse.
KEY_KINDS = frozenset(
    [
        "ch",
        "last",
        "jot",
        "jots_by_tag",
        "jots",
        "flag",
        "done",
        "failed",
        "fence",
        "once",
        "heard",
        "agents",
        "sessions",
        "who",
        "inbox",
        "leases",
        "tokens",
        "topics",
        "q",
        "dlq",
        "delayed",
        "attempts",
        "order",
        "limits",
        "flows",
        "ids",
        "positions",
        "seen",
        "results",
        "queues",
        "metrics",
        "stats",
        "quarantined",
        "beat",
        "paused",
        "replies",
        "readers",
        "replays",
        "tidied",
        "salt",
        "ev",
        "triggers",
        "rate",
        "after",
        "schedules",
        "sinks",
        "shards",
    ]
)

# A reader could mistake an agent with such a name for a person, or for the program itself.
RESERVED = frozenset(("human", "user", "system", "developer", "assistant", "agentbus"))
# The coding agent's client whose session id each environment variable holds.
SESSION_VARIABLES = {
    "CLAUDE_CODE_SESSION_ID": "claude",
    "CODEX_THREAD_ID": "codex",
    "COPILOT_AGENT_SESSION_ID": "copilot",
}

_PROJECT_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_PRIME = 0x9E3779B97F4A7BB9
_PLAIN_TO_SHELLS = _PROJECT_CHARACTERS | frozenset("@%+:,/")
# The schemes that git itself speaks: through curl, and the others. All others are of a program beside it.
_WEB_SCHEMES = frozenset(("http", "https", "ftp", "ftps"))
_GIT_SCHEMES = frozenset(("ssh", "git", "git+ssh", "ssh+git"))
_HOST_CHARACTERS = _PROJECT_CHARACTERS | {":"}
_PORT_CHARACTERS = frozenset(":0123456789")
_BRACKETS = frozenset("[]\\")
# Names that consist only of these characters are shown without quotes.
_PLAIN_IN_TEXT = _PROJECT_CHARACTERS | frozenset("@~:")


def name(kind: str, value: object) -> str:
    """Return `value` if it is a valid name: 1 to 256 bytes of UTF-8, no control characters."""
    # Fast path: an ASCII name needs no check of each character.
    if (
        type(value) is str
        and 0 < len(value) <= MAX_NAME_BYTES
        and value.isascii()
        and value.isprintable()
    ):
        return value
    text = _text(kind, value)
    size = len(text.encode())
    if not size:
        raise _bad_name(f"the {kind} is empty", hint="give it at least one character")
    if size > MAX_NAME_BYTES:
        raise _bad_name(
            f"the {kind} {_shown(text)} has {size} bytes", hint=f"use at most {MAX_NAME_BYTES}"
        )
    for character in text:
        if character < " " or "\x7f" <= character <= "\x9f":
            raise _bad_name(
                f"the {kind} {_shown(text)} holds the control character U+{ord(character):04X}",
                hint="leave it out",
            )
    return text


def topics(value: object) -> str:
    """Return a list of topics to follow, or with a minus before each to mute, separated by commas."""
    words = [word.strip() for word in _text("list of topics", value).split(",")]
    words = [word for word in words if word]
    for word in words:
        name("topic", word.removeprefix("-").strip())
    listed = ",".join(words)
    if len(listed.encode()) > MAX_NAME_BYTES:
        raise _bad_name("the list of topics is too long", hint=f"use {MAX_NAME_BYTES} bytes")
    return listed


def rings(topics: str, topic: str) -> bool:
    """Tell whether a topic rings for an agent with this list, as the Lua library `spoken` does."""
    words = [word.strip() for word in topics.split(",")]
    follows = [word for word in words if word and word[0] != "-"]
    muted = [word[1:].strip() for word in words if word[:1] == "-"]
    names = {"*", topic} if topic else {"*"}
    return names.isdisjoint(muted) and (not follows or not names.isdisjoint(follows))


def at_most(kind: str, number: int) -> None:
    """Raise `UsageError` for more than 1,000 items: a script would block other clients for too long."""
    if number > MOST_AT_ONCE:
        from agentbus.core.errors import UsageError

        raise UsageError(
            f"there are {number} {kind}s", hint=f"give at most {MOST_AT_ONCE} at a time"
        )


def items(kind: str, given: object) -> list[Any]:
    """Return the items of a collection. Raises `UsageError` for a text, or a value without items."""
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        from agentbus.core.errors import UsageError

        raise UsageError(f"the {kind}s are {given!r:.80}", hint=f"give a list of {kind}s")
    return [*given]


def tag(value: object) -> str:
    """Return `value` if it is a valid tag: a name without a comma, which separates stored tags."""
    text = name("tag", value)
    if "," in text:
        raise _bad_name(f"the tag {_shown(text)} holds a comma", hint="give two tags instead")
    return text


def project(value: object) -> str:
    """Return `value` if it is a valid project: `[A-Za-z0-9_.-]+` segments joined by `:`.

    A `{}` around the whole is allowed: it is Redis Cluster's hash tag.
    """
    text = _text("project", value)
    inner = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
    if len(text) > MAX_PROJECT_BYTES:
        raise _bad_name(
            f"the project {_shown(text)} has {len(text)} characters",
            hint=f"use at most {MAX_PROJECT_BYTES}",
        )
    segments = inner.split(":")
    for segment in segments:
        if not segment or not _PROJECT_CHARACTERS.issuperset(segment):
            raise _bad_name(
                f"{_shown(text)} is not a project name",
                hint="use letters, digits, '_', '.' and '-', in segments joined by ':'",
            )
    if len(segments) > 1:
        _check_segments(text, segments[1:])
    return text


def _check_segments(project: str, segments: list[str]) -> None:
    """Raise `InvalidName` if one of a project's later segments is a kind of key."""
    for segment in segments:
        if segment in KEY_KINDS:
            raise _bad_name(
                f"the project {_shown(project)} has the reserved segment {segment!r}",
                hint="rename that segment: keys of another project would look like its own",
            )


def split_address(agent: str) -> tuple[str, str | None]:
    """Return the name and the project in the form `NAME@project`; other texts are a name without one."""
    before, at, after = agent.rpartition("@")
    if not (at and before and _PROJECT_CHARACTERS.issuperset(after.strip("{}").replace(":", ""))):
        return agent, None
    try:
        return before, project(after)
    except Exception:  # noqa: BLE001 (importing the error costs time)
        return agent, None


def repository_address(url: str) -> str:
    """Return `host/path` of a git URL, the same for all URLs of a repository; for a path, return the path.

    The result omits the scheme, the user, the port, a final `.git`, and redundant slashes. It is ""
    if git and this function could read two hosts in it.
    """
    first = url.partition("/")[0]
    if "[" not in first.partition("::")[0] and "::" in first:
        # This address is for a remote helper, such as `ext::`; only the helper can interpret it.
        return url
    scheme, is_url, rest = url.partition("://")
    prefix = ""
    if is_url:
        scheme = scheme.lower()
        if scheme not in _WEB_SCHEMES and "%" in rest:
            # git decodes the whole, and then looks for the host.
            rest = unquoted(rest)
        host = rest.partition("/")[0]
        if scheme in _WEB_SCHEMES:
            host = host.partition("?")[0].partition("#")[0]
        path = rest[len(host) :].removeprefix("/")
        if scheme == "file":
            # git takes no notice of the host.
            return _tidy(f"/{path}")
        if scheme in _WEB_SCHEMES:
            path = unquoted(path)
        elif scheme not in _GIT_SCHEMES:
            prefix = f"{scheme}://"
    elif first[:1] == "[" or "@[" in first:
        host, bracket, path = url.partition("]:")
        host += bracket[:1]
    elif ":" in first:
        host, _, path = url.partition(":")
    else:
        return _tidy(url)
    host = _host(host)
    return f"{prefix}{host}/{_tidy(path.removeprefix('~/')).lstrip('/')}" if host else ""


def _host(authority: str) -> str:
    """Return the host of `user@host:port`, of which the host, with or without the port, may be in brackets.

    It is "" in any other form.
    """
    user, _, host = authority.rpartition("@")
    port = ""
    if host[:1] == "[" and "]" in host:
        host, _, port = host[1:].partition("]")
    # A host with more than one colon is an IPv6 address.
    if host.count(":") == 1 and not port:
        host, _, port = host.partition(":")
    is_plain = _HOST_CHARACTERS.issuperset(host) and _PORT_CHARACTERS.issuperset(port)
    return host.lower() if is_plain and _BRACKETS.isdisjoint(user) else ""


def unquoted(text: str) -> str:
    """Return a part of a URL without percent-encoding."""
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text, errors="surrogateescape")


def repository_place(common: str) -> str:
    """Return the directory of a repository, from the directory that its work trees share."""
    base, _, last = common.rpartition("/")
    return (base or "/") if last in (".git", ".bare") else common


def repository_project(address: str) -> str:
    """Return the project name of a repository: its name and four letters of a hash of its address."""
    # This is faster than importing hashlib. Cubing mixes the bits better than the 64-bit modulus
    # alone.
    number = pow(int.from_bytes(address.encode("utf-8", "surrogatepass"), "big"), 3, _PRIME)
    letters = "".join([chr(ord("a") + number // 26**at % 26) for at in range(4)])
    last = address.rpartition("/")[2]
    kept = "".join([c if c in _PROJECT_CHARACTERS else "-" for c in last]).strip("-")
    return f"{kept[: MAX_PROJECT_BYTES - 5] or 'agentbus'}-{letters}"


def _tidy(path: str) -> str:
    """Return a path without empty parts, `.` and `.git`."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if parts and parts[-1] == ".git":
        parts.pop()
    elif parts:
        parts[-1] = parts[-1].removesuffix(".git")
    return ("/" if path[:1] == "/" else "") + "/".join(parts)


def body(kind: str, value: object, limit: int = MAX_BODY_BYTES) -> str:
    """Return `value` if every sink can store it: UTF-8, no NUL, not empty, at most `limit` bytes."""
    if not isinstance(value, str):
        raise _bad_payload(f"the {kind} is a {type(value).__name__}", hint="give it as text")
    if not value:
        raise _bad_payload(f"the {kind} is empty", hint="give it some text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise _bad_payload(
            f"the {kind} is not UTF-8 (character {error.start})", hint="encode it as UTF-8"
        ) from None
    if size > limit:
        raise _bad_payload(
            f"the {kind} has {size} bytes; the limit is {limit}",
            hint="store the bulk elsewhere and send its location, or raise 'max_body'",
        )
    if "\0" in value:
        raise _bad_payload(
            f"the {kind} holds a NUL character",
            hint="leave it out: databases cannot store it",
        )
    return value


def escape(part: str) -> str:
    """Percent-encode `%` and `:` for a key that holds two names."""
    return part.replace("%", "%25").replace(":", "%3A")


def unescape(part: str) -> str:
    """Undo `escape`."""
    return part.replace("%3A", ":").replace("%25", "%")


def shell_word(text: str) -> str:
    """Quote text as one shell word, for a command in a message."""
    if text and _PLAIN_TO_SHELLS.issuperset(text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def word(text: str) -> str:
    """Return a name for display: quoted, unless it has only ASCII letters, digits and `._@~:-`."""
    if is_plain(text):
        return text
    from agentbus.core.escape import in_quotes

    return in_quotes(text)


def is_plain(text: str) -> bool:
    """Return whether a name has only ASCII letters, digits and `._@~:-`."""
    return text != "" and _PLAIN_IN_TEXT.issuperset(text)


def _text(kind: str, value: object) -> str:
    if not isinstance(value, str):
        raise _bad_name(f"the {kind} is a {type(value).__name__}", hint="give it as text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _bad_name(f"the {kind} {value!a} is not UTF-8", hint="encode it as UTF-8") from None
    return value


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


# These functions import the error module only to raise: a shell command that succeeds never needs
# it.
def _bad_name(message: str, *, hint: str) -> InvalidName:
    from agentbus.core.errors import InvalidName

    return InvalidName(message, hint=hint)


def _bad_payload(message: str, *, hint: str) -> InvalidPayload:
    from agentbus.core.errors import InvalidPayload

    return InvalidPayload(message, hint=hint)
