"""Sessions of browsers: signed cookies, so that the server keeps nothing for them; codes and tokens."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from agentbus.core.errors import ConfigError

# Seconds for which a session lasts.
LASTS = 7 * 86_400
# A shorter token could be guessed.
LEAST_TOKEN = 16


class WebSessions:
    """Signs the cookies of one application; whether a session is `needed` at all.

    With a `token` its sessions stay valid when the program is started again with it. A `code` opens one
    session and then no other. Without both the application is open to all who reach it, and a session
    only binds the tokens of forms.
    """

    def __init__(self, token: str | None, code: str | None) -> None:
        """Raises `ConfigError` for a token that could be guessed."""
        if token is not None and len(token) < LEAST_TOKEN:
            raise ConfigError(
                f"the token has {len(token)} characters", hint=f"use at least {LEAST_TOKEN}"
            )
        self.has_token = token is not None
        self.needed = token is not None or code is not None
        self._token = _digest(token) if token is not None else None
        self._code = _digest(code) if code is not None else None
        self._secret = (
            hashlib.sha256(b"agentbus web\0" + token.encode()).digest()
            if token is not None
            else secrets.token_bytes(32)
        )

    def start(self) -> str:
        """Return the cookie of a new session."""
        body = f"{int(time.time()):x}.{secrets.token_hex(16)}"
        return f"{body}.{self._sign('session', body)}"

    def is_valid(self, cookie: str) -> bool:
        """Tell whether a cookie is one of ours, and not too old."""
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._sign("session", body).encode(), _bytes(signature)):
            return False
        return int(body.partition(".")[0], 16) + LASTS > time.time()

    def csrf(self, cookie: str) -> str:
        """Return the token that the forms of a session carry."""
        return self._sign("csrf", cookie)

    def is_csrf(self, cookie: str, token: str) -> bool:
        """Tell whether a form carries the token of its session."""
        return hmac.compare_digest(self.csrf(cookie).encode(), _bytes(token))

    def redeem(self, code: str) -> bool:
        """Tell whether a one-time code is right; it is used up then."""
        if self._code is None or not hmac.compare_digest(self._code, _digest(code)):
            return False
        self._code = None
        return True

    def is_token(self, text: str) -> bool:
        """Tell whether the text is the token."""
        return self._token is not None and hmac.compare_digest(self._token, _digest(text))

    def sealed(self, text: str) -> str:
        """Return text as the value of a cookie that `unsealed` accepts."""
        body = text.encode("utf-8", "replace").hex()
        return f"{body}.{self._sign('text', body)}"

    def unsealed(self, cookie: str) -> str:
        """Return the text of a cookie that `sealed` made; of another one ''."""
        body, _, signature = cookie.partition(".")
        good = hmac.compare_digest(self._sign("text", body).encode(), _bytes(signature))
        return bytes.fromhex(body).decode() if good else ""

    def _sign(self, what: str, body: str) -> str:
        said = f"{what}\0{body}".encode("utf-8", "replace")
        return hmac.new(self._secret, said, hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _digest(text: str) -> bytes:
    # Of one length, so that the comparison does not tell the length of what is secret.
    return hashlib.sha256(_bytes(text)).digest()
