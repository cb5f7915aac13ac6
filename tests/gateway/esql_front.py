"""ES|QL before an engine that was built without it, as the test servers are, as far as a rewritten query needs it.

`KNN` is the `knn` query with the same options (Elasticsearch's reference, "Dense vector functions"), so the
engine behind still judges the vector and the options of each request.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from es_sbert.engines.rest import Json

_KNN = re.compile(
    r"FROM (\S+).* KNN\((\w+), \?(\w*)(?:, (\{.*?\}))?\)(?: AND (\w+) == \"(.*?)\")?.* LIMIT (\d+)", re.DOTALL
)
_PASSED = ("content-type", "x-elastic-product")


@dataclass
class EsqlFront:
    """Answers `_query` and `_query/async`, and passes other requests on.

    Attributes:
        received: The bodies of both.
    """

    engine: str
    received: list[bytes] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "HEAD", "POST", "PUT", "DELETE"])])

    async def _answer(self, request: Request) -> Response:
        body, path, method, params = (
            await request.body(),
            request.url.path,
            request.method,
            request.query_params.multi_items(),
        )
        is_esql = method == "POST" and path in ("/_query", "/_query/async")
        if is_esql:
            self.received.append(body)
            index, search = _as_search(json.loads(body))
            body, path, params = json.dumps(search).encode(), f"/{index}/_search", []
        headers = {"content-type": "application/json"} if body else {}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            found = await client.request(method, self.engine + path, params=params, content=body, headers=headers)
        passed = {name: found.headers[name] for name in _PASSED if name in found.headers}
        content = found.content
        if is_esql and found.status_code == 200:
            rows = [[hit["_id"], hit["_score"]] for hit in found.json()["hits"]["hits"]]
            columns = [{"name": "_id", "type": "keyword"}, {"name": "_score", "type": "double"}]
            content = json.dumps({"columns": columns, "values": rows, "is_running": False}).encode()
        return Response(content, found.status_code, passed)


def _as_search(body: Json) -> tuple[str, Json]:
    parsed = _KNN.search(body["query"])
    if parsed is None:
        return body["query"].split()[1], {"query": {"match_all": {}}}
    index, vector_field, name, written, term, value, limit = parsed.groups()
    params = body["params"]
    vector = next(param[name] for param in params if name in param) if not name.isdigit() else params[int(name) - 1]
    options = json.loads(written or "{}")
    if "min_candidates" in options:
        options["num_candidates"] = options.pop("min_candidates")
    knn = {"field": vector_field, "query_vector": vector, "k": int(limit)} | options
    clause: Json = {"bool": {"must": [{"knn": knn | {"filter": [{"match": {term: value}}] if term else []}}]}}
    return index, {"query": clause, "size": int(limit)}
