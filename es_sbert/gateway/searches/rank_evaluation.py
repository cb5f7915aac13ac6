"""`_rank_eval`: the searches that it rates, put into the engine's words."""

from __future__ import annotations

from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.gateway.searches.reading import arrived, read_search
from es_sbert.gateway.searches.scope import Scope
from es_sbert.gateway.searches.templates import Templates
from es_sbert.gateway.searches.understanding import Understanding
from es_sbert.gateway.tasks import gather_all, run_by_size
from es_sbert.gateway.wire.forward import Answer, Outgoing
from es_sbert.gateway.wire.incoming import Incoming
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
        there = await arrived(incoming, self._understanding)
        if there.plain is None:
            return there.same
        # Templates that the engine keeps are not seen here.
        if b'"templates"' in there.plain:
            self._understanding.check_size(there.plain)
        elif not await self._understanding.may_ask(there.plain, there.mode):
            return there.same
        try:
            read = await run_by_size(len(there.plain), read_search, there.plain, incoming)
        except NotPlainJson:
            return there.same
        rated = read.body.get("requests")
        if not isinstance(rated, list):
            return there.same
        scope = Scope(route.index, dict(read.params), incoming.headers, there.mode, size=len(there.plain),
                      budget=self._understanding.budget())  # fmt: skip
        templates = _by_id(read.body.get("templates"))
        new = await gather_all(self._rated(one, templates, incoming, scope) for one in rated)
        if all(one is other for one, other in zip(new, rated, strict=True)):
            return there.same
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
