"""Answers to bulk requests of which not every item was sent, or which went in several parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.failures import error_object, status_of
from es_sbert.gateway.writes.items import Item


def joined(answers: Sequence[Json], items: Sequence[Item], refused: Mapping[int, EsSbertError]) -> Json:
    """One answer in the order of the request.

    Args:
        answers: To the parts that were sent, in their order; none where nothing was.
        items: All items of the request.
        refused: Number of an item → why it was not sent.
    """
    given = [result for answer in answers for result in answer.get("items", ())]
    own = {number: refusal(items[number], error) for number, error in sorted(refused.items())}
    if len(given) + len(own) == len(items):
        others = iter(given)
        results = [own[number] if number in own else next(others) for number in range(len(items))]
    else:
        # A `filter_path` took results out of the answer: which item the others belong to cannot be known, nor asked.
        results = [*given, *own.values()]
    whole: Json = dict(answers[0]) if answers else {}
    whole["took"] = sum(answer.get("took", 0) for answer in answers)
    whole["errors"] = bool(refused) or any(answer.get("errors", False) for answer in answers)
    whole["items"] = results
    return whole


def refusal(item: Item, error: EsSbertError) -> Json:
    """The result of an item that was not sent, as the engine writes results."""
    result = {"_index": item.index, "_id": item.id, "status": status_of(error), "error": error_object(error)}
    return {str(item.operation): result}


def failed_part(items: Sequence[Item], status: int, error: object) -> Json:
    """What a part that the engine refused as a whole adds to the answer."""
    results = [
        {str(item.operation): {"_index": item.index, "_id": item.id, "status": status, "error": error}}
        for item in items
    ]
    return {"took": 0, "errors": True, "items": results}
