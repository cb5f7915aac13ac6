"""`_rank_eval`: the searches that it rates, put into the engine's words."""

from __future__ import annotations

import asyncio
from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.searches.single import MODE_HEADER, is_json, read_search
from es_sbert.gateway.searches.templates import Templates
from es_sbert.gateway.searches.understanding import Understanding
from es_sbert.gateway.wire.forward import Answer, Outgoing
from es_sbert.gateway.wire.incoming import Incoming, decompressed
from es_sbert.gateway.wire.json_bodies import NotPlainJson, write_object
from es_sbert.gateway.wire.routes import Route


class RankEvaluation:
    """Handles `_rank_eval`.

    Args:
        understanding: Rewrites bodies.
        templates: Fills templates in.
    """

    def __init__(self, understanding: Understanding, templates: Templates) -> None:
        self._understanding = understanding
        self._templates = templates

    async def outgoing(self, incoming: Incoming, route: Route) -> Outgoing:
        """What goes to the engine: the very request where none of its searches asks by meaning.

        Raises:
            EsSbertError: one asks for something that cannot be.
        """
        raw = await incoming.body()
        same = Outgoing.same(incoming, raw)
        mode = self._understanding.mode(incoming.header(MODE_HEADER))
        plain = decompressed(raw, incoming)
        if plain is None or not is_json(incoming) or mode is Mode.OFF:
            return same
        # Templates that the engine keeps are not seen here.
        if not self._understanding.may_ask(plain, mode) and b'"templates"' not in plain:
            return same
        try:
            read = read_search(plain, incoming)
        except NotPlainJson:
            return same
        rated = read.body.get("requests")
        if not isinstance(rated, list):
            return same
        scope = Scope(route.index, dict(read.params), incoming.headers, mode)
        templates = _by_id(read.body.get("templates"))
        new = await asyncio.gather(*(self._rated(one, templates, incoming, scope) for one in rated))
        if all(one is other for one, other in zip(new, rated, strict=True)):
            return same
        return Outgoing.rewritten(incoming, write_object(read.body | {"requests": new}), incoming.target)

    async def _rated(self, rated: Any, templates: dict[str, Json], incoming: Incoming, scope: Scope) -> Any:
        if not isinstance(rated, dict):
            return rated
        template = templates.get(str(rated.get("template_id")))
        search: Any = rated.get("request")
        if template is not None:
            search = await self._templates.render(template | {"params": rated.get("params", {})}, incoming)
        if isinstance(search, Answer) or not isinstance(search, dict):
            return rated  # the engine says by itself what is wrong
        understood = await self._understanding.rewrite(search, scope)
        if understood.body is search:
            return rated
        kept = {name: value for name, value in rated.items() if name not in ("template_id", "params")}
        return kept | {"request": understood.body}


def _by_id(templates: Any) -> dict[str, Json]:
    said = templates if isinstance(templates, list) else []
    return {
        str(one.get("id")): one["template"]
        for one in said
        if isinstance(one, dict) and isinstance(one.get("template"), dict)
    }
