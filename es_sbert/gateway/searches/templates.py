"""Search templates, which may hold a query by meaning where the request shows none."""

from __future__ import annotations

from es_sbert.engines.protocol import Json
from es_sbert.gateway.wire.forward import Answer, Outgoing, fetch
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.json_bodies import NotPlainJson, parse_object, write_object
from es_sbert.gateway.wire.upstream import Upstream

_OF_A_TEMPLATE = ("id", "source", "params")
# What a request for a template says of the search itself.
_OF_THE_SEARCH = ("explain", "profile")


class Templates:
    """Has templates filled in by the engine, with the caller's rights.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def render(self, body: Json, incoming: Incoming) -> Json | Answer:
        """The search that a template stands for, or what the engine answers where there is none.

        Args:
            body: Of `_search/template`.

        Raises:
            EngineUnreachable: the engine does not answer.
        """
        wanted = {name: body[name] for name in _OF_A_TEMPLATE if name in body}
        render = Outgoing.rewritten(incoming, write_object(wanted), b"/_render/template", "POST")
        answer = await fetch(self._upstream, render)
        if answer.status != 200:
            return answer
        try:
            output = parse_object(answer.body).get("template_output")
        except NotPlainJson:
            return answer
        if not isinstance(output, dict):
            return answer
        return output | {name: body[name] for name in _OF_THE_SEARCH if name in body}
