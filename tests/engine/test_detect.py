from __future__ import annotations

from contextlib import closing

import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine_info import EngineType
from tests.conftest import EVERY_ENGINE


@pytest.mark.parametrize("name", EVERY_ENGINE)
def test_engine_is_detected(name: str, request: pytest.FixtureRequest) -> None:
    """Elasticsearch 9 has no `GET /` in the build of the tests."""
    url = request.getfixturevalue(f"{name}_url")
    with closing(connect(EngineSettings(url=url))) as engine:
        oldest = {"es9": (9, 0, 0), "es8": (8, 19, 0), "opensearch": (3, 0, 0)}[name]
        assert oldest <= engine.info.version < (oldest[0] + 1, 0, 0)
        assert (engine.info.engine_type is EngineType.OPENSEARCH) == (name == "opensearch")
        assert engine.info.url == url
