"""An engine that answers bulk requests as it is told, and a gateway before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import orjson

from es_sbert.encoder.encoder import Encoder
from tests.engine.vectors import field_of
from tests.gateway.echo import HEAD, Echo, Received
from tests.gateway.serving import gateway
from tests.gateway.writes.support import bulk_lines


class Bulks:
    """An engine that answers bulk requests as it is told, with one index.

    Args:
        encoder: The model of the index's vector field; None where it has none.
        answers: To one bulk request after the other; None hangs up, and of those beyond, all items are written.

    Attributes:
        sent: Of each bulk request that arrived, the ids of its documents.
        bodies: Of each, its body.
        arrived: Set once one has arrived.
    """

    def __init__(self, encoder: Encoder | None, answers: list[bytes | None]) -> None:
        self.sent: list[list[str]] = []
        self.bodies: list[bytes] = []
        self.arrived = threading.Event()
        self._answers = answers
        self._mapping: dict[str, Any] = {"docs": {"mappings": {}}}
        if encoder is not None:
            meta = field_of(encoder.info).model_dump(mode="json")
            self._mapping = {"docs": {"mappings": {"_meta": {"es_sbert": {"fields": {"embedding": meta}}}}}}

    def __call__(self, got: Received, out: BinaryIO) -> bool:
        if got.target.partition(b"?")[0] != b"/docs/_bulk":
            out.write(whole(orjson.dumps(self._mapping)))
            return True
        self.bodies.append(got.body)
        lines = got.body.splitlines()
        self.sent.append([orjson.loads(line)["index"]["_id"] for line in lines[::2]])
        self.arrived.set()
        number = len(self.sent) - 1
        answer = self._answers[number] if number < len(self._answers) else taken(self.sent[-1])
        if answer is None:
            return False
        out.write(answer)
        return True


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return HEAD.replace(b"200 OK", status) + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def taken(names: list[str]) -> bytes:
    items = [{"index": {"_id": name, "status": 201}} for name in names]
    return whole(orjson.dumps({"took": 1, "errors": False, "items": items}))


@contextmanager
def before(bulks: Bulks, tiny: Path) -> Iterator[str]:
    with Echo(reply=bulks) as echo, gateway(echo.url, tiny) as url:
        yield url


def numbered(count: int) -> bytes:
    return bulk_lines([("index", {"_id": str(number)}, {"text": f"a cat {number}"}) for number in range(count)])


def statuses(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    items = [item["index"] for item in answer.json()["items"]]
    assert [item["_id"] for item in items] == [str(number) for number in range(len(items))]
    return [item["status"] for item in items]
