from __future__ import annotations

import socket

import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import EngineUnreachable
from tests.conftest import free_port


def test_elasticsearch_9_is_detected_without_root_endpoint(es9_url: str) -> None:
    engine = connect(EngineSettings(url=es9_url))
    engine.close()
    assert engine.info.engine_type is EngineType.ELASTICSEARCH
    assert engine.info.version >= (9, 0, 0)
    assert engine.info.url == es9_url


def test_elasticsearch_8_is_detected(es8_url: str) -> None:
    engine = connect(EngineSettings(url=es8_url))
    engine.close()
    assert engine.info.engine_type is EngineType.ELASTICSEARCH
    assert (8, 19, 0) <= engine.info.version < (9, 0, 0)
    assert not engine.info.supports_base64_vectors


def test_opensearch_is_detected(opensearch_url: str) -> None:
    engine = connect(EngineSettings(url=opensearch_url))
    engine.close()
    assert engine.info.engine_type is EngineType.OPENSEARCH
    assert engine.info.version >= (3, 0, 0)
    assert engine.info.label.startswith("OpenSearch 3.")


def test_connection_refused_raises_engine_unreachable() -> None:
    with pytest.raises(EngineUnreachable, match="nothing listens at http://127.0.0.1") as caught:
        connect(EngineSettings(url=f"http://127.0.0.1:{free_port()}"))
    assert "es-sbert engine up" in caught.value.remedy


def test_unknown_host_raises_engine_unreachable() -> None:
    # RFC 6761 reserves .invalid: no resolver may know it.
    with pytest.raises(EngineUnreachable, match="is not known"):
        connect(EngineSettings(url="http://engine.invalid:9200"))


def test_https_to_plain_http_engine_raises(engine_url: str) -> None:
    with pytest.raises(EngineUnreachable, match="does not speak TLS") as caught:
        connect(EngineSettings(url=engine_url.replace("http://", "https://")))
    assert "http://" in caught.value.remedy


def test_unresponsive_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(EngineUnreachable, match=r"did not answer within 0\.3 seconds"):
            connect(EngineSettings(url=f"http://127.0.0.1:{port}", timeout=0.3))
