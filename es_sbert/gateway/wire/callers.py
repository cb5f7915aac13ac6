"""Who asks, as far as the gateway must know it."""

from __future__ import annotations

import hashlib
import os

from es_sbert.gateway.wire.incoming import Headers

# Headers that say who asks: a question on the caller's behalf carries these.
_IDENTITY = frozenset({
    b"authorization", b"cookie", b"es-client-authentication", b"es-secondary-authorization",
    b"es-security-runas-user", b"securitytenant", b"x-proxy-roles", b"x-proxy-user",
})  # fmt: skip


def identity(headers: Headers) -> Headers:
    """The headers by which the engine knows the caller."""
    return [(name, value) for name, value in headers if name in _IDENTITY]


class CallerKeys:
    """Keys for what is remembered of a caller: an expression means different indices to different callers.

    Credentials are not kept: a hash under a secret that only this object knows stands for them.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(32)

    def key(self, headers: Headers, *parts: str) -> bytes:
        """The key of something that this caller asked.

        Args:
            headers: The caller's.
            parts: What was asked.
        """
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in parts:
            digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
        for name, value in sorted(identity(headers)):
            digest.update(name + b":" + value + b"\0")
        return digest.digest()
