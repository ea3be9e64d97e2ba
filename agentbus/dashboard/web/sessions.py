"""Sessions of browsers: signed cookies, for which the server stores nothing; codes and tokens."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from ipaddress import IPv6Address, ip_address
from time import monotonic, time

from agentbus.core.errors import ConfigError

# Seconds for which a session lasts, in all and without a request, and after which its cookie is renewed.
LASTS, IDLE, RENEWED = 7 * 86_400, 12 * 3_600, 3_600
# Seconds for which the one-time code can be used.
CODE_LASTS = 600
# The minimum length of a token: a shorter one could be guessed.
LEAST_TOKEN = 16
# Wrong tokens from one address, and from all, after which none is examined for a number of seconds.
_WRONG_EACH, _WRONG, _WITHIN = 5, 100, 60


class WrongTokens:
    """Counts wrong tokens: few are examined from one address, and from all, within a minute."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._until = 0.0

    def examines(self, address: str) -> bool:
        """Tell whether a token from an address is examined: not after many wrong ones within a minute."""
        if monotonic() > self._until:
            self._counts.clear()
            self._until = monotonic() + _WITHIN
        return self._counts[network(address)] < _WRONG_EACH and self._counts.total() < _WRONG

    def count(self, address: str) -> None:
        """Count a wrong token."""
        self._counts[network(address)] += 1


class WebSessions:
    """Signs the cookies of one application; `needed` tells whether a session is required.

    With a `token` its sessions stay valid when the program is started again with it, as the same `site`:
    the cookies and forms of another site are refused. A `code` opens one session and then no other. Without
    both the application is open to all who reach it, and a session only binds the tokens of forms.
    """

    def __init__(self, token: str | None, code: str | None, site: str = "") -> None:
        """Create the signer. Raises `ConfigError` for a token that could be guessed."""
        if token is not None and len(token) < LEAST_TOKEN:
            raise ConfigError(
                f"the token has {len(token)} characters", hint=f"use at least {LEAST_TOKEN}"
            )
        self.has_token = token is not None
        self.needed = token is not None or code is not None
        self._token = _digest(token) if token is not None else None
        self._code = _digest(code) if code is not None else None
        self._code_until = monotonic() + CODE_LASTS
        self._secret = (
            hashlib.sha256(_bytes(f"agentbus web\0{token}\0{site}")).digest()
            if token is not None
            else secrets.token_bytes(32)
        )
        # When each session that was ended had begun.
        self._ended: dict[str, int] = {}
        self._wrong = WrongTokens()

    def start(self) -> str:
        """Return the cookie of a new session."""
        return self._cookie(f"{int(time()):x}.{secrets.token_hex(16)}")

    def renewed(self, cookie: str) -> str:
        """Return a new cookie of the session, or '' if its cookie is valid for long enough."""
        session, seen = _parts(cookie)
        return self._cookie(session) if seen + RENEWED < time() else ""

    def is_valid(self, cookie: str) -> bool:
        """Tell whether a cookie is signed, and of a session that is neither too old, idle nor ended."""
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._sign("session", body).encode(), _bytes(signature)):
            return False
        return _parts(cookie)[1] + IDLE > time() and self.lasts(cookie)

    def lasts(self, cookie: str) -> bool:
        """Tell whether the session of a valid cookie has not ended, while its page is open."""
        session, _ = _parts(cookie)
        return session not in self._ended and _begun(session) + LASTS > time()

    def end(self, cookie: str) -> None:
        """End the session of a valid cookie: no cookie of it is valid any more."""
        oldest = time() - LASTS
        self._ended = {key: begun for key, begun in self._ended.items() if begun > oldest}
        session, _ = _parts(cookie)
        self._ended[session] = _begun(session)

    def csrf(self, cookie: str) -> str:
        """Return the token for the forms of a session."""
        return self._sign("csrf", _parts(cookie)[0])

    def is_csrf(self, cookie: str, token: str) -> bool:
        """Tell whether a form carries the token of its session."""
        return hmac.compare_digest(self.csrf(cookie).encode(), _bytes(token))

    def redeem(self, code: str) -> bool:
        """Tell whether a one-time code is right and not too old; it is used up then."""
        if self._code is None or not hmac.compare_digest(self._code, _digest(code)):
            return False
        if monotonic() > self._code_until:
            return False
        self._code = None
        return True

    def examines(self, address: str) -> bool:
        """Tell whether a token from an address is examined: not after many wrong ones within a minute."""
        return self._wrong.examines(address)

    def is_token(self, text: str, address: str) -> bool:
        """Tell whether the text is the token; a wrong one is counted for its address."""
        right = self._token is not None and hmac.compare_digest(self._token, _digest(text))
        if not right:
            self._wrong.count(address)
        return right

    def sealed(self, text: str) -> str:
        """Return text as the value of a cookie that `unsealed` accepts."""
        body = text.encode("utf-8", "replace").hex()
        return f"{body}.{self._sign('text', body)}"

    def unsealed(self, cookie: str) -> str:
        """Return the text of a cookie that `sealed` created; '' for any other."""
        body, _, signature = cookie.partition(".")
        good = hmac.compare_digest(self._sign("text", body).encode(), _bytes(signature))
        return bytes.fromhex(body).decode() if good else ""

    def _cookie(self, session: str) -> str:
        body = f"{session}.{int(time()):x}"
        return f"{body}.{self._sign('session', body)}"

    def _sign(self, what: str, body: str) -> str:
        said = f"{what}\0{body}".encode("utf-8", "replace")
        return hmac.new(self._secret, said, hashlib.sha256).hexdigest()


def _parts(cookie: str) -> tuple[str, int]:
    """Return the session of a signed cookie, and when the cookie was given."""
    begun, key, seen, _ = cookie.split(".")
    return f"{begun}.{key}", int(seen, 16)


def _begun(session: str) -> int:
    return int(session.partition(".")[0], 16)


def network(address: str) -> str:
    """Return an address, or of IPv6 the network of 64 bits, of which one host can have all addresses."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return found.packed[:8].hex()
    return address


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _digest(text: str) -> bytes:
    # Compare digests, which have the same length, so that the time of comparison does not reveal
    # the secret's length.
    return hashlib.sha256(_bytes(text)).digest()
