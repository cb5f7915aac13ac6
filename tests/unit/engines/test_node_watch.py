"""A client of several addresses sends nothing to a node of another cluster."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.errors import EngineUnreachable
from tests.unit.engines.web_server import opensearch_root, served

ONE, TWO = opensearch_root("one"), opensearch_root("two")


def test_node_that_comes_back_with_another_cluster_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with served(ONE) as stays, ExitStack() as running:
        goes = running.enter_context(served(ONE))
        with closing(connect(EngineSettings(url=f"{stays.url},{goes.url}", timeout=30))) as engine:
            for _ in range(6):
                engine.put_mapping("docs", {})
            assert len(goes.requests) == len(stays.requests) == 3
            running.close()
            with served(TWO, port=goes.port) as other:
                for _ in range(6):
                    engine.put_mapping("docs", {})
                assert other.requests == []
                assert len(stays.requests) == 9
            said = [each for each in caplog.records if each.name == "es_sbert" and "another cluster" in each.message]
            assert len(said) == 1


def test_nodes_of_another_cluster_alone_are_an_error() -> None:
    with ExitStack() as running:
        one, two = (running.enter_context(served(ONE)) for _ in range(2))
        with closing(connect(EngineSettings(url=f"{one.url},{two.url}", timeout=30))) as engine:
            engine.put_mapping("docs", {})
            running.close()
            with served(TWO, port=one.port) as first, served(TWO, port=two.port) as second:
                with pytest.raises(EngineUnreachable):
                    engine.put_mapping("docs", {})
                assert first.requests == second.requests == []
