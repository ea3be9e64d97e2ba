"""Parses a server's URL by hand, because importing `urllib` takes longer than a short command may take."""

from __future__ import annotations

from agentbus.core.errors import ConfigError
from agentbus.core.record import Record

_HEX = "0123456789abcdefABCDEF"


class Url(Record):
    """The parts of a server's URL, percent-decoded."""

    scheme: str
    username: str | None
    password: str | None
    hosts: tuple[tuple[str, int | None], ...]
    path: str
    options: tuple[tuple[str, str], ...]

    def masked(self) -> str:
        """Return the URL for display, with `***` for each password, and for a user without a password."""
        who = self.username or ""
        if self.password is not None:
            who += ":***"
        elif who:
            # A user without a password may be a token.
            who = "***"
        hosts = ",".join(
            (f"[{host}]" if ":" in host else host) + (f":{port}" if port is not None else "")
            for host, port in self.hosts
        )
        options = "&".join(
            f"{key}={'***' if _is_secret(key) else value}" for key, value in self.options
        )
        return (
            f"{self.scheme}://{who}{'@' if who else ''}{hosts}{self.path}"
            f"{'?' if options else ''}{options}"
        )

    def database(self, path: str | None = None) -> int:
        """Return the database number, from `?db=` or from `path`."""
        text = dict(self.options).get("db", "")
        if not text and self.scheme != "unix":
            text = (self.path if path is None else path).strip("/")
        if not text:
            return 0
        if not (text.isascii() and text.isdigit()) or len(text) > 9:
            raise ConfigError(
                f"{self.masked()} names the database {text!r}", hint="give its number"
            )
        return int(text)


def read(text: str) -> Url:
    """Parse `scheme://[user[:password]@]host[:port][,host…][/path][?options]`."""
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme:
        raise ConfigError(
            f"{_shown(text)} is not a URL", hint="write it as redis://host:port or unix:///path"
        )
    for character in text:
        if character <= " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff":
            raise ConfigError(
                "the server's URL contains a blank or a control character",
                hint="percent-encode it, as in %20",
            )
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    if "@" in query or ("@" in path and scheme.lower() != "unix"):
        # The '@' may belong to a password, of which messages would show a part as host, port or
        # option.
        raise ConfigError(
            "the server's URL has an '@' after its host",
            hint="percent-encode '/', '?' and '@' in a password, as in %2F, %3F and %40",
        )
    username, colon, password = credentials.partition(":")
    options = []
    for item in query.split("&") if query else []:
        key, _, value = item.partition("=")
        options.append((_decoded(key), _decoded(value)))
    return Url(
        scheme.lower(),
        _decoded(username) or None if at else None,
        _decoded(password) if at and colon else None,
        tuple(map(_host, hosts.split(","))) if hosts else (),
        _decoded(slash + path),
        tuple(options),
    )


def _is_secret(option: str) -> bool:
    return any(word in option.lower() for word in ("pass", "pwd", "secret", "token", "auth"))


def _host(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigError(
                "the server's URL has an unfinished [address]", hint="close it with ]"
            )
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
    if not port:
        return _decoded(host), None
    if not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        # Do not show the text: without an '@' after it, it may be a password.
        raise ConfigError(
            "the server's URL names a port that is not a number from 1 to 65535",
            hint="correct it, or write '@' after a password, as in redis://:password@host",
        )
    return _decoded(host) or "localhost", int(port)


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    data = text.encode()
    out = bytearray()
    at = 0
    while at < len(data):
        pair = data[at + 1 : at + 3].decode("latin-1")
        if data[at] == 37:
            if len(pair) < 2 or pair[0] not in _HEX or pair[1] not in _HEX:
                raise ConfigError(
                    "the server's URL has a '%' that is not followed by two hex digits",
                    hint="write it as %25",
                )
            out.append(int(pair, 16))
            at += 3
        else:
            out.append(data[at])
            at += 1
    try:
        return out.decode()
    except UnicodeDecodeError:
        raise ConfigError("the server's URL is not UTF-8", hint="encode it as UTF-8") from None


def _shown(text: str) -> str:
    # An invalid URL may hold a password: show only the beginning.
    return ascii(text[:8] + "…" if len(text) > 8 else text)
