"""Requests of tests: httpx by itself gives up after 5 seconds, within which a loaded machine may not make an index."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import orjson

SECONDS = 300.0
NDJSON = {"content-type": "application/x-ndjson"}

get = partial(httpx.get, timeout=SECONDS, trust_env=False)
post = partial(httpx.post, timeout=SECONDS, trust_env=False)
put = partial(httpx.put, timeout=SECONDS, trust_env=False)
delete = partial(httpx.delete, timeout=SECONDS, trust_env=False)


def client(url: str, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=SECONDS, trust_env=False, **options)


def ndjson(*lines: Any) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)
