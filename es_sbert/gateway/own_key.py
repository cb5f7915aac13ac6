"""Keys of the gateway's own, which callers of its own pages send as bearer token."""

from __future__ import annotations

import hmac

from pydantic import SecretStr
from starlette.requests import Request


def may(request: Request, key: SecretStr | None) -> bool:
    """Whether a request has the key; where there is none, every request may."""
    if key is None:
        return True
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    # Compared in constant time: how long a refusal takes says nothing about the key.
    right = hmac.compare_digest(token.strip().encode(), key.get_secret_value().encode())
    return scheme.lower() == "bearer" and right
