"""Pairs of models, which earlier releases made, and other models with a Router are refused by name, never half read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from es_sbert.bundle.bundle import open_encoder_bundle
from es_sbert.bundle.local_registry import fingerprint_of, register_model, registry_path, unregister_model
from es_sbert.bundle.model_lookup import find_index_model, resolve_model
from es_sbert.encoder.encoder import Encoder, open_index_encoder
from es_sbert.errors import ModelNotFound, UnsupportedArchitecture
from tests.tiny import add_router, write_tiny_bert

pytestmark = pytest.mark.usefixtures("hub")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The model for documents, registered."""
    folder = write_tiny_bert(tmp_path / "large")
    register_model(folder, fingerprint_of(folder))
    return folder


@pytest.fixture
def pair(large: Path, tmp_path: Path) -> Path:
    """A pair with that model, registered as earlier releases did."""
    folder = write_tiny_bert(tmp_path / "fast-search")
    entry = {"name": "fast-search", "fingerprint": fingerprint_of(large), "folder": str(folder)}
    add_router(folder)
    stored = json.loads(registry_path().read_text())
    stored["models"].append(entry | {"query_fingerprint": "f" * 32})
    registry_path().write_text(json.dumps(stored))
    return folder


@pytest.mark.parametrize("kind", ["Router", "Asym"])
def test_folder_with_two_networks_is_refused(tmp_path: Path, kind: str) -> None:
    folder = write_tiny_bert(tmp_path / "routed")
    add_router(folder, kind)
    with pytest.raises(
        UnsupportedArchitecture, match=f"has a {kind} module, which embeds queries and documents with sep"
    ) as raised:
        Encoder(folder)
    assert "es-sbert index migrate INDEX --model MODEL" in raised.value.remedy
    (folder / "es_sbert.json").write_text(json.dumps({
        "format": 1, "name": "routed", "architecture": "bert", "fingerprint": "f" * 32, "pooling": ["mean"],
        "normalize": True, "max_tokens": 24, "dimensions": 16, "prompts": {}, "default_prompt": None, "variants": {},
        "route_fingerprints": {"query": "a", "document": "b"}, "route_variants": {"query": {}}, "exporter": {},
    }))  # fmt: skip
    with pytest.raises(UnsupportedArchitecture, match=f"has a {kind} module"):
        open_encoder_bundle(folder)


def test_registered_pair_is_refused_by_name(pair: Path, large: Path) -> None:
    register_model(large, fingerprint_of(large))  # which writes the entry of the pair again
    with pytest.raises(ModelNotFound):
        resolve_model("fast-search")


@pytest.mark.parametrize("by_folder", [False, True])
def test_index_that_names_a_pair_is_refused_although_its_model_for_documents_is_here(
    pair: Path, large: Path, by_folder: bool
) -> None:
    """Its queries were embedded by another model: no other one takes its place unasked."""
    name, fingerprint = str(pair) if by_folder else "fast-search", fingerprint_of(large)
    with pytest.raises(ModelNotFound) as raised:
        open_index_encoder("docs", name, fingerprint)
    assert str(pair / "es_sbert_pair.json") in raised.value.message
    assert "es-sbert index migrate docs --model MODEL" in raised.value.remedy
    # The ways out: name the model for documents, or remove the pair.
    with open_index_encoder("docs", name, fingerprint, model=large, precision="fp32") as encoder:
        assert encoder.info.fingerprint == fingerprint
    assert find_index_model("docs", "large", fingerprint).folder == large
    unregister_model(str(pair))
    assert find_index_model("docs", name, fingerprint).folder == large
