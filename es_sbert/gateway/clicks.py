"""`POST /_es_sbert/click`: an application reports which document of a search was opened.

The gateway sends the id of each logged search to the application, in the header `x-es-sbert-search-id`. A click names
that id, the document and its position. The id is the only authentication: it is random, so only the caller that ran the
search knows it. A click with an unknown id is stored, because the search may have run on another gateway; it counts
only if a search has that id.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError, Overloaded
from es_sbert.gateway.admission import AdmissionControl, RequestSlot
from es_sbert.gateway.errors import BadRequest, error_body, http_status
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.proxy.incoming_request import IncomingRequest
from es_sbert.gateway.settings import Limits

CLICK_PATH = "/_es_sbert/click"
SEARCH_ID_HEADER = b"x-es-sbert-search-id"

# Enough for a click with the longest id that engines accept: 512 bytes, each of which JSON may write as six characters.
_MAX_BODY = 8192
_MAX_ID_BYTES = 512
_MAX_INDEX_CHARACTERS = 255
_MAX_POSITION = 10_000  # the largest k
_SEARCH_ID = re.compile(r"[0-9a-f]{20}")
_MEMBERS = ("search_id", "document_id", "position", "index")
_EXAMPLE = 'Send {"search_id": "…", "document_id": "42", "position": 3}; position 1 is the first hit.'

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClickRecord:
    """A click on a hit: a document that a search found was opened.

    Attributes:
        search_id: Id of the search.
        document_id: `_id` of the document.
        position: Its position among the hits, from 1.
        index: Concrete index of the document, if the application gave it.
        at: Time of the click.
    """

    search_id: str
    document_id: str
    position: int
    index: str | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def id(self) -> str:
        """Id of the record. Opening a document again, or resending the request, gives the same id and counts once."""
        opened = hashlib.blake2b(f"{self.index}\0{self.document_id}".encode(), digest_size=10)
        return f"{self.search_id}-{opened.hexdigest()}"


def click_document(click: ClickRecord, gateway: str) -> Json:
    """Convert a click to its log document.

    Args:
        gateway: Name of the gateway.
    """
    facts = {
        "@timestamp": click.at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "gateway": gateway,
        "search_id": click.search_id,
        "index": click.index,
        "document_id": click.document_id,
        "position": click.position,
    }
    return {name: value for name, value in facts.items() if value is not None}


def parse_click(body: bytes) -> ClickRecord:
    """Parse and check the body of a request.

    Raises:
        BadRequest: the body is not a JSON object, or a member is unknown, missing or invalid.
    """
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}", _EXAMPLE) from error
    if not isinstance(members, dict):
        raise BadRequest("the body is not a JSON object", _EXAMPLE)
    unknown = next((name for name in members if name not in _MEMBERS), None)
    if unknown is not None:
        raise BadRequest(f"unknown member {unknown!r}", f"Use only {', '.join(_MEMBERS)}.")
    search_id, document_id, position, index = (members.get(name) for name in _MEMBERS)
    if not isinstance(search_id, str) or not _SEARCH_ID.fullmatch(search_id):
        raise BadRequest(
            "'search_id' is not the id of a search",
            "Send the value of the header x-es-sbert-search-id of the search's response.",
        )
    if not isinstance(document_id, str) or not 0 < len(document_id.encode()) <= _MAX_ID_BYTES:
        raise BadRequest("'document_id' is not the id of a document", "Send the _id of the hit.")
    if type(position) is not int or not 1 <= position <= _MAX_POSITION:
        raise BadRequest("'position' is not the position of a hit", f"Send a number from 1 to {_MAX_POSITION:,}.")
    if index is not None and (not isinstance(index, str) or not 0 < len(index) <= _MAX_INDEX_CHARACTERS):
        raise BadRequest("'index' is not the name of an index", "Send the _index of the hit, or leave it out.")
    return ClickRecord(search_id, document_id, position, index)


class ClickApi:
    """The endpoint for clicks.

    Args:
        record: Logs a click without blocking; returns False if it cannot.
        limits: Limits of the gateway.
        metrics: Counts requests.
        admission: Limits requests.
    """

    def __init__(
        self,
        record: Callable[[ClickRecord], bool],
        limits: Limits,
        metrics: GatewayMetrics,
        admission: AdmissionControl,
    ) -> None:
        self._record = record
        self._limits = limits.model_copy(update={"body_bytes": _MAX_BODY})
        self._metrics = metrics
        self._admission = admission

    def routes(self) -> list[Route]:
        """The route of the endpoint."""
        return [Route(CLICK_PATH, self._click, methods=["POST"])]

    async def _click(self, request: Request) -> Response:
        with self._metrics.request("click") as outcome, self._admission.slot() as slot:
            try:
                response = await self._answer(request, slot)
            except ClientDisconnect:
                return Response(status_code=outcome.status)
            except EsSbertError as error:
                response = Response(error_body(error), http_status(error), media_type="application/json")
            outcome.status = response.status_code
            return response

    async def _answer(self, request: Request, slot: RequestSlot) -> Response:
        """Log the click. The content type is not checked, because `navigator.sendBeacon` sends plain text."""
        incoming = IncomingRequest.from_scope(request.scope, request.receive, self._limits, slot)
        if not self._record(parse_click(await incoming.body())):
            raise Overloaded("too many records wait to be written to the search log", "Send the click again later.")
        return Response(b'{"accepted":true}', 202, media_type="application/json")
