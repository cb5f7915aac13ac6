"""Models with a Router: queries and documents through modules of their own, as in sentence-transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, StaticEmbedding, Transformer

from es_sbert.bundle import known_settings
from es_sbert.bundle.bundle import cached_bundle_path
from es_sbert.bundle.sentence_model import PromptKind, read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting, UsageError
from es_sbert.exporters import export, graph_builder
from es_sbert.exporters.opensearch_ml import export_opensearch_ml
from es_sbert.exporters.parity import row_cosines
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.networks.siamese_encoder import open_siamese_encoder
from tests.tiny import tiny_tokenizer
from tests.unit.checkpoints import write_checkpoint

TEXTS = ["a", "The CAT sleeps", "  leading space", "naïve café", "[MASK] and <mask> spelled out", "yes " * 60]
KINDS: tuple[PromptKind | None, ...] = (None, "query", "document")
PROMPTS = {"query": "query: ", "document": "the passage: "}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {name: write_checkpoint(place / name, name, layers=1, seed=n) for n, name in enumerate(("bert", "roberta"))}


def transformer(folder: Path, **pooling: Any) -> list[torch.nn.Module]:
    return [Transformer(str(folder)), Pooling(48, **pooling)]


def static(width: int = 48) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [StaticEmbedding(tiny_tokenizer(), embedding_dim=width)]


def save(folder: Path, *modules: torch.nn.Module, **settings: Any) -> Path:
    SentenceTransformer(modules=list(modules), device="cpu", prompts=PROMPTS, **settings).save(str(folder))
    return folder


def their_vectors(folder: Path) -> dict[PromptKind | None, Floats]:
    network = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float()
    functions = {None: network.encode, "query": network.encode_query, "document": network.encode_document}
    return {kind: np.asarray(functions[kind](TEXTS)) for kind in KINDS}


def our_vectors(folder: Path, precision: str = "fp32") -> dict[PromptKind | None, Floats]:
    with Encoder(folder, device="cpu", precision=precision) as encoder:
        return {kind: encoder.encode(TEXTS, kind) for kind in KINDS}


def assert_same(vectors: dict[Any, Floats], expected: dict[Any, Floats], cosine: float = 0.99999) -> None:
    for kind in KINDS:
        assert vectors[kind].shape == expected[kind].shape
        assert row_cosines(vectors[kind], expected[kind]).min() > cosine, kind


def check(folder: Path, bundle: Path) -> None:
    """On first use, and from a bundle of both precisions, which both libraries open."""
    expected, model = their_vectors(folder), read_sentence_model(folder)
    manifest = export(folder, bundle, ["fp32", "int8"], force=True)
    assert manifest.fingerprint == model.fingerprint
    assert all(variant.parity is not None for variant in manifest.all_variants.values())
    assert manifest.route_variants.keys() == {route.route_name for route in model.routes}
    assert_same(our_vectors(bundle), expected)
    assert_same(our_vectors(bundle, "int8"), expected, 0.95)
    assert_same(their_vectors(bundle), expected)


def shapes(bases: dict[str, Path]) -> dict[str, list[torch.nn.Module]]:
    bert, roberta = transformer(bases["bert"]), transformer(bases["roberta"], pooling_mode="cls")
    return {
        "two transformers": [Router.for_query_document([*roberta, Dense(48, 24)], [*bert, Dense(48, 24)]), Normalize()],
        "static queries": [Router.for_query_document([*static(), Dense(48, 48)], bert), Normalize()],
        "prompt of queries": [Router.for_query_document(transformer(bases["bert"], include_prompt=False), roberta)],
        "default is the query": [Router.for_query_document(roberta, bert, default_route="query")],
        "after the pooling": [*bert, Router.for_query_document([Dense(48, 24)], [Dense(48, 24)])],
        "three routes": [
            Router({"query": bert, "document": roberta, "any": static()}, default_route="any", allow_empty_key=False),
            Dense(48, 16),
        ],
        "mappings": [
            Router(
                {"small": static(), "large": bert},
                route_mappings={
                    ("query", "text"): "small",
                    ("document", None): "large",
                    (None, ("image", "text")): "small",
                },
            )
        ],
        "by modality": [Router({"image": static(), "text": bert})],
    }


NAMES = (
    "two transformers", "static queries", "prompt of queries", "default is the query", "after the pooling",
    "three routes", "mappings", "by modality",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_kind_takes_its_route(bases: dict[str, Path], tmp_path: Path, name: str) -> None:
    check(save(tmp_path / "model", *shapes(bases)[name]), tmp_path / "bundle")


def test_asym_of_older_releases(bases: dict[str, Path], tmp_path: Path) -> None:
    """Its settings are in config.json, and its class has another name."""
    folder = save(tmp_path / "model", *shapes(bases)["after the pooling"])
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Asym"
    (folder / "modules.json").write_text(json.dumps(modules))
    place = folder / modules[2]["path"]
    config = json.loads((place / "router_config.json").read_text())
    config["parameters"] = {"allow_empty_key": True}
    (place / "config.json").write_text(json.dumps(config))
    (place / "router_config.json").unlink()
    check(folder, tmp_path / "bundle")


@pytest.fixture
def routed(bases: dict[str, Path], tmp_path: Path) -> Path:
    return save(tmp_path / "model", *shapes(bases)["static queries"])


def router_config(folder: Path) -> Iterator[dict[str, Any]]:
    path = next(folder.rglob("router_config.json"))
    config = json.loads(path.read_text())
    yield config
    path.write_text(json.dumps(config))


def edit(folder: Path, **parameters: Any) -> None:
    for config in router_config(folder):
        config["parameters"] |= parameters


def test_text_without_tokens_in_its_route(routed: Path) -> None:
    network = SentenceTransformer(str(routed), device="cpu", prompts={})
    # With the bias of Dense: the vector of nothing is not zero.
    expected = np.asarray(network.encode(["a", ""], task="query", prompt=""))
    settings = routed / "config_sentence_transformers.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "prompts": {}}))
    with Encoder(routed, device="cpu", precision="fp32") as encoder:
        assert row_cosines(encoder.encode(["a", ""], "query"), expected).min() > 0.99999


def test_each_network_is_loaded_when_a_text_first_takes_its_route(routed: Path) -> None:
    with Encoder(routed, device="cpu", precision="fp32") as encoder:
        assert not any(encoder.is_open(kind) for kind in KINDS)
        encoder.encode(TEXTS, "query")
        assert [encoder.is_open(kind) for kind in KINDS] == [False, True, False]
        assert encoder.info.max_tokens > 64  # of the StaticEmbedding, which reads any length
        encoder.encode(TEXTS)
        assert encoder.is_open("document")
    with Encoder(routed, kind="query", device="cpu", precision="fp32") as encoder:
        pass
    with pytest.raises(UsageError, match="is closed"):
        encoder.encode(TEXTS, "document")
    with Encoder(routed, kind="document", device="cpu", precision="fp32") as encoder:
        assert [encoder.is_open(kind) for kind in KINDS] == [True, False, True]
        assert encoder.info.max_tokens == 64


def test_routes_of_different_variants_are_named_together(routed: Path, tmp_path: Path) -> None:
    export(routed, tmp_path / "bundle", ["fp32", "int8"], force=True)
    manifest = json.loads((tmp_path / "bundle/es_sbert.json").read_text())
    del manifest["route_variants"]["query"]["int8"]
    (tmp_path / "bundle/es_sbert.json").write_text(json.dumps(manifest))
    with Encoder(tmp_path / "bundle", device="cpu") as encoder:
        encoder.open("query")
        assert encoder.info.variant == "fp32"
        encoder.open("document")
        shown = encoder.info.variant
    assert shown in ("fp32", "fp32 + int8"), shown


def test_vectors_of_a_route_are_those_of_its_modules_alone(bases: dict[str, Path], tmp_path: Path) -> None:
    routed = save(tmp_path / "routed", Router.for_query_document(static(), transformer(bases["bert"])))
    alone = save(tmp_path / "alone", *transformer(bases["bert"]))
    with Encoder(routed, device="cpu", precision="fp32") as ours, Encoder(alone, device="cpu", precision="fp32") as one:
        np.testing.assert_allclose(ours.encode(TEXTS, "document"), one.encode(TEXTS, "document"), atol=1e-5)
        assert ours.input_limit("document") == one.input_limit("document") != ours.input_limit("query")
        chunkers = [encoder.make_chunker(16, 4, "document") for encoder in (ours, one)]
        assert chunkers[0](TEXTS) == chunkers[1](TEXTS)


def test_router_with_one_route_is_the_model_of_its_modules(bases: dict[str, Path], tmp_path: Path) -> None:
    routed = save(tmp_path / "routed", *shapes(bases)["by modality"])
    alone = save(tmp_path / "alone", *transformer(bases["bert"]))
    assert read_sentence_model(routed).fingerprint == read_sentence_model(alone).fingerprint


def test_fingerprint_covers_every_route(bases: dict[str, Path], tmp_path: Path) -> None:
    first = read_sentence_model(save(tmp_path / "1", *shapes(bases)["static queries"])).fingerprint
    again = shutil.copytree(tmp_path / "1", tmp_path / "2")
    assert read_sentence_model(again).fingerprint == first
    edit(again, default_route="query")
    assert read_sentence_model(again).fingerprint != first
    edit(again, default_route="document")
    assert read_sentence_model(again).fingerprint == first
    (dense,) = again.rglob("*_Dense/config.json")
    dense.write_text(dense.read_text().replace("Tanh", "Sigmoid"))
    assert read_sentence_model(again).fingerprint != first


def test_texts_without_a_route_are_an_error(routed: Path) -> None:
    edit(routed, default_route=None, allow_empty_key=False)
    with Encoder(routed, device="cpu", precision="fp32") as encoder:
        assert encoder.encode(TEXTS, "query").shape == encoder.encode(TEXTS, "document").shape
        with pytest.raises(UsageError, match="has no route for texts without a kind") as raised:
            encoder.encode(TEXTS)
    assert "document, query" in raised.value.remedy


def test_kind_without_a_route_is_an_error(bases: dict[str, Path], tmp_path: Path) -> None:
    """sentence-transformers does not fall back on the default route for a query."""
    modules = Router({"document": transformer(bases["bert"]), "other": static()}, default_route="other")
    folder = save(tmp_path / "model", modules)
    with Encoder(folder, device="cpu", precision="fp32") as encoder:
        assert encoder.encode(TEXTS).shape == (len(TEXTS), 48)
        with pytest.raises(UsageError, match="has no route for a query"):
            encoder.encode(TEXTS, "query")


def test_routes_of_different_lengths_are_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = save(tmp_path / "model", Router.for_query_document(static(24), transformer(bases["bert"])))
    with pytest.raises(BundleInvalid, match="document 48, query 24"):
        read_sentence_model(folder)


def test_weights_beyond_the_limit_of_a_file_are_kept_next_to_it(
    routed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_builder, "EXTERNAL_DATA_FROM", 1)
    expected = their_vectors(routed)
    export(routed, tmp_path / "bundle", ["fp32"])
    graph = tmp_path / "bundle/onnx/route_0/model_fp32.onnx"
    data = graph.with_name(f"{graph.name}.data")
    assert data.stat().st_size > graph.stat().st_size
    assert_same(our_vectors(tmp_path / "bundle"), expected)


def test_half_precision_is_for_routes_with_products(routed: Path, tmp_path: Path) -> None:
    manifest = export(routed, tmp_path / "bundle", ["fp16"])
    assert {route: list(variants) for route, variants in manifest.route_variants.items()} == {
        "document": ["fp16"],
        "query": ["fp32"],
    }


def test_routes_are_exported_to_the_cache_as_models_of_their_own(bases: dict[str, Path], tmp_path: Path) -> None:
    """So a network that two models share is exported and measured once."""
    routed = save(tmp_path / "routed", Router.for_query_document(static(), transformer(bases["bert"])))
    alone = save(tmp_path / "alone", *transformer(bases["bert"]))
    model, said = read_sentence_model(routed), list[str]()
    with Encoder(alone, device="cpu", precision="fp32") as encoder:
        expected = encoder.encode(TEXTS, "document")
    with Encoder(routed, device="cpu", precision="fp32", report=said.append) as encoder:
        assert np.array_equal(encoder.encode(TEXTS, "document"), expected)
        assert said == []
        encoder.encode(TEXTS, "query")
    assert any("Exporting" in line for line in said)
    (query,) = [route for route in model.routes if route.kinds == ("query",)]
    cached = read_sentence_model(cached_bundle_path(query.fingerprint))
    assert (cached.fingerprint, cached.routes, cached.architecture) == (query.fingerprint, (), "static")


def test_router_is_neither_trained_nor_run_by_ml_commons(routed: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match="does not train"):
        open_siamese_encoder(routed)
    with pytest.raises(UsageError, match="Router"):
        export_opensearch_ml(read_sentence_model(routed), tmp_path / "ml")


@pytest.mark.parametrize(
    ("part", "value", "error", "message"),
    [
        ("types", {}, BundleInvalid, "is broken"),
        ("structure", {}, BundleInvalid, "is broken"),
        ("structure", [], BundleInvalid, "is broken"),
        ("parameters", {"default_route": "missing"}, BundleInvalid, "no route missing"),
        ("parameters", {"route_mappings": {"('query', None)": "missing"}}, BundleInvalid, "no route missing"),
        ("parameters", {"route_mappings": {"query": "query"}}, BundleInvalid, "is broken"),
        ("parameters", {"a_new_setting": 1}, UnsupportedSetting, "parameters.a_new_setting"),
        ("a_new_setting", 1, UnsupportedSetting, "a_new_setting"),
    ],
)
def test_broken_router_is_refused(routed: Path, part: str, value: Any, error: type[Exception], message: str) -> None:
    for config in router_config(routed):
        config[part] = value
    with pytest.raises(error, match=message):
        read_sentence_model(routed)


def test_setting_that_is_ignored_on_request(routed: Path, tmp_path: Path) -> None:
    edit(routed, a_new_setting=1)
    export(routed, tmp_path / "bundle", ["fp32"], ignore_settings=["parameters.a_new_setting"])
    assert len(read_sentence_model(tmp_path / "bundle").routes) == 2


def test_gold_pairs_need_a_route_for_texts_of_no_kind(routed: Path, tmp_path: Path) -> None:
    edit(routed, default_route=None, allow_empty_key=False)
    gold = tmp_path / "gold.tsv"
    gold.write_text("sentence1\tsentence2\tscore\na cat\ta dog\t3\na mat\ta man\t1\n")
    with pytest.raises(UsageError, match="has no route for texts without a kind") as raised:
        export(routed, tmp_path / "bundle", ["fp32"], sts_file=gold)
    assert "`sts_file`" in raised.value.remedy


def test_router_with_missing_files_is_refused(routed: Path) -> None:
    (place,) = routed.rglob("query_0_StaticEmbedding")
    (place / "model.safetensors").unlink()
    with pytest.raises(BundleInvalid, match=r"no model\.safetensors"):
        read_sentence_model(routed)
    next(routed.rglob("router_config.json")).unlink()
    with pytest.raises(BundleInvalid, match="config.json"):
        read_sentence_model(routed)


@pytest.mark.parametrize("kind", ["custom.Module", "sentence_transformers.models.LSTM", "sentence_transformers.Router"])
def test_other_module_in_a_route_is_refused(routed: Path, kind: str) -> None:
    for config in router_config(routed):
        config["types"]["query_0_StaticEmbedding"] = kind
    with pytest.raises(UnsupportedArchitecture):
        read_sentence_model(routed)


def test_folder_outside_the_model_is_refused(routed: Path) -> None:
    for config in router_config(routed):
        config["types"]["../x"] = "sentence_transformers.models.Normalize"
    with pytest.raises(BundleInvalid, match="outside the folder"):
        read_sentence_model(routed)


def test_every_setting_of_the_installed_library_is_known() -> None:
    assert set(Router.config_keys) == known_settings.ROUTER_PARAMETERS.known


@pytest.mark.slow
def test_route_that_is_traced(bases: dict[str, Path], tmp_path: Path) -> None:
    modern = write_checkpoint(tmp_path / "modernbert", "modernbert", layers=2)
    routes = Router.for_query_document(transformer(bases["bert"]), transformer(modern))
    check(save(tmp_path / "model", routes), tmp_path / "bundle")
