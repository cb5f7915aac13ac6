"""Requests of tests: httpx by itself gives up after 5 seconds, within which a loaded machine may not make an index."""

from __future__ import annotations

from functools import partial

import httpx

SECONDS = 300.0

get = partial(httpx.get, timeout=SECONDS, trust_env=False)
post = partial(httpx.post, timeout=SECONDS, trust_env=False)
put = partial(httpx.put, timeout=SECONDS, trust_env=False)
delete = partial(httpx.delete, timeout=SECONDS, trust_env=False)
