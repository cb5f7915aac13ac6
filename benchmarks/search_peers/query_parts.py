"""Where the time of a semantic query through the gateway goes, with one client.

For each text in turn, on one connection each: the query through the gateway; the kNN request that the gateway makes of
it, sent to the engine with its vector ready; the text's encoding alone, in this process; and a plain `match` directly
and through the gateway. The first without the next two is the time of the gateway itself.
"""

from __future__ import annotations

import http.client
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmarks.common import seconds
from benchmarks.gateway import asked
from es_sbert.encoder.encoder import Encoder

PARTS = ("through the gateway", "encoding alone", "kNN with a ready vector", "match, directly", "match, gateway")


class Connection:
    """One connection that is kept.

    Args:
        index: What is searched.
    """

    def __init__(self, url: str, index: str) -> None:
        self._path = f"/{index}/_search"
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def search(self, body: Any, path: str | None = None) -> Any:
        """The answer to a search.

        Raises:
            RuntimeError: it is an error.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request("POST", path or self._path, data, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(text.decode())
        return json.loads(text)


def measure(url: str, gateway: str, texts: Sequence[str], index: str, model: str) -> dict[str, list[float]]:
    """Part → milliseconds of each text."""
    engine, through, page = Connection(url, index), Connection(gateway, index), Connection(gateway, index)
    found: dict[str, list[float]] = defaultdict(list)

    def timed(part: str, *call: Any) -> None:
        found[part].append(1000 * seconds(lambda: call[0](*call[1:]))[0])

    with Encoder(model) as encoder:
        for text in texts:
            timed("through the gateway", through.search, json.dumps(asked(text)).encode())
            # The same query in the engine's words; its vector comes from the cache.
            ready = page.search({"index": index, "body": asked(text)}, "/ui/api/body")["body"]
            timed("kNN with a ready vector", engine.search, json.dumps(ready).encode())
            timed("encoding alone", encoder.encode, [text], "query")
            plain = json.dumps({"query": {"match": {"text": text}}, "size": 10, "_source": ["text"]}).encode()
            timed("match, directly", engine.search, plain)
            timed("match, gateway", through.search, plain)
    return dict(found)


def own_time(run: Mapping[str, Sequence[float]]) -> float:
    """The gateway's own milliseconds: what is left of the median without those of encoding and kNN."""
    whole, encoding, search = (statistics.median(run[part]) for part in PARTS[:3])
    return whole - encoding - search
