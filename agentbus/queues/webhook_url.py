"""Checks webhook URLs before a name is resolved or a request sent."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from agentbus.core.errors import UsageError

_LONGEST = 2048
_HOST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._")
_HINT = "write it as https://host/path"


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The destination of a webhook: host in lower case, port, and path with query."""

    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Return the host with its port, as a URL has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def target(url: object) -> WebhookTarget:
    """Return the destination of a webhook. Raises `UsageError`, whose message shows no query or user."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable():
        raise UsageError("the webhook is not a URL of printable ASCII characters", hint=_HINT)
    if len(url) > _LONGEST or set(url) & set(' "<>\\^`{|}'):
        raise UsageError(
            f"the webhook has over {_LONGEST} characters, or some that URLs cannot contain",
            hint=_HINT,
        )
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
    except ValueError as error:
        raise UsageError(f"the webhook is not a URL ({error})", hint=_HINT) from None
    if parts.scheme != "https":
        raise UsageError("the webhook is not an https URL", hint="results are sent encrypted only")
    if "@" in parts.netloc:
        raise UsageError(
            "the webhook's URL contains a user", hint="leave it out: requests are signed instead"
        )
    if "#" in url:
        raise UsageError("the webhook's URL has a fragment", hint="leave out '#' and what follows")
    literal = parts.netloc.startswith("[")
    if not host or port == 0 or not (literal or _HOST.issuperset(host)) or "%" in parts.netloc:
        raise UsageError("the webhook's URL names no host and port", hint=_HINT)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(host, 443 if port is None else port, path)
