"""From settings to an engine."""

from __future__ import annotations

from es_sbert.config import EngineSettings
from es_sbert.engines.address import read_address
from es_sbert.engines.detect import detect
from es_sbert.engines.protocol import Engine, Flavour


def connect(settings: EngineSettings) -> Engine:
    """Find out what answers at the address and open a client for it; close it with `close()`.

    Raises:
        UsageError: an address that is not a URL, or contradictory credentials.
        EngineUnreachable, AccessDenied, UnsupportedEngine, RequestFailed: see `detect`.
    """
    address = read_address(settings)
    info = detect(address)
    # Each client package takes a tenth of a second and more to import: only the one in use is.
    if info.flavour is Flavour.ELASTICSEARCH:
        from es_sbert.engines.elasticsearch import ElasticsearchEngine

        return ElasticsearchEngine.at(info, address)
    from es_sbert.engines.opensearch import OpenSearchEngine

    return OpenSearchEngine.at(info, address)
