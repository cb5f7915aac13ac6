"""Pairs: a large model for documents and a small one of its space for queries, in one folder with one fingerprint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding

from es_sbert.bundle.local_registry import fingerprint_of, read_registry, register_model
from es_sbert.bundle.model_lookup import find_index_model
from es_sbert.bundle.pair_record import PairRecord
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.shortened_model import shortened_model_folder
from es_sbert.catalog.model_pair import make_pair, measure_agreement
from es_sbert.cli.main import cli
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, ModelNotFound, ModelsDisagree, UnsupportedArchitecture, UsageError
from es_sbert.exporters import export
from es_sbert.exporters.parity import row_cosines
from tests.tiny import tiny_tokenizer
from tests.unit.checkpoints import write_checkpoint, write_static_student

TEXTS = ["a", "The CAT sleeps", "A man plays the guitar.", "[MASK] and <mask> spelled out", "yes " * 60]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ES_SBERT_REGISTRY", str(tmp_path / "models.json"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with a prompt for queries, a table of its space without one, and a model of another space."""
    place = tmp_path_factory.mktemp("models")
    large = write_checkpoint(place / "large", layers=1, prompts={"query": "query: ", "document": ""})
    return {
        "large": large,
        "small": write_static_student(place / "small", large),
        "other": write_checkpoint(place / "other", layers=1, seed=7),
    }


@pytest.fixture(scope="module")
def made(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(place / "cache"))
        make_pair(read_sentence_model(models["large"]), read_sentence_model(models["small"]), place / "pair")
    return place / "pair"


@pytest.fixture
def pair(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "pair")


def ours(folder: Path, kind: Any) -> np.ndarray[Any, Any]:
    with Encoder(folder, device="cpu", precision="fp32") as encoder:
        return encoder.encode(TEXTS, kind)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_sentence_transformers_opens_it_with_the_vectors_of_both_models(models: dict[str, Path], pair: Path) -> None:
    """Each with its own prompts, although the folder has one list of them."""
    network = SentenceTransformer(str(pair), device="cpu", local_files_only=True)
    for vectors in (np.asarray(network.encode_document(TEXTS)), ours(pair, "document")):
        assert row_cosines(vectors, ours(models["large"], "document")).min() > 0.99999
    for vectors in (np.asarray(network.encode_query(TEXTS)), ours(pair, "query")):
        assert row_cosines(vectors, ours(models["small"], "query")).min() > 0.99999
    for vectors in (np.asarray(network.encode(TEXTS)), ours(pair, None)):
        assert row_cosines(vectors, ours(models["large"], None)).min() > 0.99999


def test_fingerprint_is_that_of_the_model_for_documents(models: dict[str, Path], pair: Path, tmp_path: Path) -> None:
    """Which an index holds, so the index is searched by the pair; routes are the two models."""
    model = read_sentence_model(pair)
    assert model.fingerprint == fingerprint_of(models["large"])
    assert model.query_fingerprint == fingerprint_of(models["small"])
    manifest = export(pair, tmp_path / "bundle", ["fp32"])
    assert manifest.fingerprint == model.fingerprint
    bundle = read_sentence_model(tmp_path / "bundle")
    assert (bundle.fingerprint, bundle.query_fingerprint) == (model.fingerprint, model.query_fingerprint)
    assert row_cosines(ours(tmp_path / "bundle", "query"), ours(models["small"], "query")).min() > 0.99999


def test_pair_that_is_cut_has_the_fingerprint_of_the_cut_model(models: dict[str, Path], pair: Path) -> None:
    cut = shortened_model_folder(pair, 16)
    assert fingerprint_of(cut) == fingerprint_of(shortened_model_folder(models["large"], 16))
    assert ours(cut, "query").shape == ours(cut, "document").shape == (len(TEXTS), 16)


def test_another_model_for_queries_takes_the_place_of_the_first(
    models: dict[str, Path], pair: Path, tmp_path: Path
) -> None:
    """The route of an earlier pair is the model for documents; the route of a Router the one for queries."""
    middle = write_checkpoint(tmp_path / "middle", layers=1, prompts={"query": "query: "})
    edit(middle / "config_sentence_transformers.json", default_prompt_name="query")
    record = make_pair(read_sentence_model(pair), read_sentence_model(middle), tmp_path / "better")
    assert record.agreement.mean_cosine > 0.999  # the weights of the large one
    first, second = read_sentence_model(pair), read_sentence_model(tmp_path / "better")
    assert first.fingerprint == second.fingerprint
    assert second.query_fingerprint == fingerprint_of(middle) != first.query_fingerprint
    export(pair, tmp_path / "bundle", ["fp32"])
    with pytest.raises(UsageError, match="is a bundle of"):
        export(tmp_path / "better", tmp_path / "bundle", ["fp32"])
    again = make_pair(read_sentence_model(models["large"]), read_sentence_model(pair), tmp_path / "again")
    assert again.queries.fingerprint == first.query_fingerprint


def test_model_of_another_space_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    large, other = read_sentence_model(models["large"]), read_sentence_model(models["other"])
    with pytest.raises(ModelsDisagree, match="rank agreement"):
        make_pair(large, other, tmp_path / "pair")
    assert not (tmp_path / "pair").exists()
    record = make_pair(large, other, tmp_path / "pair", accept_disagreement=True)
    assert not record.agreement.passed
    with Encoder(tmp_path / "pair", kind="query", device="cpu", precision="fp32") as encoder:
        (warning,) = encoder.info.warnings
    assert "less than it should" in warning


def test_mean_cosine_alone_does_not_make_a_space() -> None:
    """Of vectors that all point the same way, those of two spaces are near each other too."""
    random = np.random.default_rng(0)
    common = 10 * np.ones(32, dtype=np.float32)
    documents, others = (common + random.normal(size=(200, 32)).astype(np.float32) for _ in range(2))
    apart = measure_agreement(documents, documents, others)
    assert apart.mean_cosine > 0.95
    assert apart.centered_cosine < 0.1
    assert not apart.passed
    near = measure_agreement(documents, documents, documents + random.normal(size=(200, 32)).astype(np.float32) / 4)
    assert near.passed


def test_ranks_alone_do_not_make_a_space() -> None:
    """As of models that were trained from one pretrained network: half of each vector is another's."""
    random = np.random.default_rng(0)
    documents = random.normal(size=(200, 64)).astype(np.float32)
    related = documents / 3 + random.normal(size=(200, 64)).astype(np.float32)
    documents[:, 0] += 20 * random.random(200)  # how central a text is for both
    related[:, 0] = documents[:, 0]
    found = measure_agreement(documents, documents, related)
    assert found.rank_agreement > 40
    assert not found.passed


@pytest.mark.parametrize("change", ["weights of queries", "weights of documents", "prompt", "route", "note", "router"])
def test_edited_pair_is_refused(models: dict[str, Path], pair: Path, tmp_path: Path, change: str) -> None:
    if change.startswith("weights"):
        route = change.rpartition(" ")[2].replace("ies", "y").removesuffix("s")
        (file,) = pair.glob(f"{route}_0_*/model.safetensors")
        values = bytearray(file.read_bytes())
        values[-1] ^= 0x40
        file.write_bytes(values)
    elif change == "prompt":
        edit(pair / "config_sentence_transformers.json", prompts={"query": "another: "})
    elif change == "route":
        config = json.loads((pair / "router_config.json").read_text())
        edit(pair / "router_config.json", parameters={**config["parameters"], "default_route": "query"})
    elif change == "note":
        queries = PairRecord.model_validate_json((pair / PairRecord.FILE_NAME).read_bytes()).queries
        edit(pair / PairRecord.FILE_NAME, queries=queries.model_copy(update={"fingerprint": "0" * 32}).model_dump())
    else:
        shutil.copytree(models["large"], pair, dirs_exist_ok=True)
    with pytest.raises(BundleInvalid, match="edited after its two models were compared") as raised:
        read_sentence_model(pair)
    assert "es-sbert model pair" in raised.value.remedy


@pytest.mark.parametrize(("text", "message"), [("{}", "format None"), ('{"format": 1}', "documents: Field required")])
def test_broken_note_is_refused(pair: Path, text: str, message: str) -> None:
    (pair / PairRecord.FILE_NAME).write_text(text)
    with pytest.raises(BundleInvalid, match=message):
        read_sentence_model(pair)


def test_models_that_cannot_be_a_pair(models: dict[str, Path], tmp_path: Path) -> None:
    large, small = read_sentence_model(models["large"]), read_sentence_model(models["small"])
    with pytest.raises(UsageError, match="same model"):
        make_pair(large, large, tmp_path / "pair")
    with pytest.raises(UsageError, match="of 16: a pair needs the same number") as raised:
        make_pair(large, read_sentence_model(shortened_model_folder(models["small"], 16)), tmp_path / "pair")
    assert "MODEL@16" in raised.value.remedy
    with pytest.raises(UsageError, match="too few"):
        make_pair(large, small, tmp_path / "pair", ["a text"])
    cut = shutil.copytree(models["large"], tmp_path / "cut")
    edit(cut / "config_sentence_transformers.json", truncate_dim=24)
    static = StaticEmbedding(tiny_tokenizer(), embedding_dim=24)
    SentenceTransformer(modules=[static, Normalize()], device="cpu").save(str(tmp_path / "narrow"))
    with pytest.raises(UnsupportedArchitecture, match="truncate_dim"):
        make_pair(read_sentence_model(cut), read_sentence_model(tmp_path / "narrow"), tmp_path / "pair")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(UsageError, match="neither empty"):
        make_pair(large, small, tmp_path / "full")


def test_dense_modules_are_part_of_both_models(models: dict[str, Path], tmp_path: Path) -> None:
    """Their folders are in the fingerprint, and have other names in a Router."""
    dense = write_checkpoint(tmp_path / "dense", layers=1, dense=[Dense(48, 24)])
    student = write_static_student(tmp_path / "student", dense)
    make_pair(read_sentence_model(dense), read_sentence_model(student), tmp_path / "pair")
    assert fingerprint_of(tmp_path / "pair") == fingerprint_of(dense)
    moved = shutil.copytree(dense, tmp_path / "moved")
    entries = json.loads((moved / "modules.json").read_text())
    (moved / entries[2]["path"]).rename(moved / "projection")
    entries[2]["path"] = "projection"
    (moved / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(UnsupportedArchitecture, match="'projection'"):
        make_pair(read_sentence_model(moved), read_sentence_model(student), tmp_path / "other")


def test_index_finds_a_pair_by_its_name_only(models: dict[str, Path], pair: Path, tmp_path: Path) -> None:
    """Searches of an index do not change because a pair of its model was made."""
    mark = fingerprint_of(pair)
    register_model(pair, mark, name="fast")
    with pytest.raises(ModelNotFound) as raised:
        find_index_model("docs", str(tmp_path / "gone"), mark)
    assert '`model="fast"`' in raised.value.remedy
    register_model(models["large"], mark, name="large")
    assert find_index_model("docs", "large", mark).folder == models["large"]
    assert find_index_model("docs", "renamed", mark).folder == models["large"]
    assert find_index_model("docs", "fast", mark).folder == pair
    assert find_index_model("docs", str(pair), mark).folder == pair


def test_registering_a_pair_does_not_replace_its_model(models: dict[str, Path], pair: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(models["large"], tmp_path / "moved")
    mark = register_model(moved, fingerprint_of(moved), name="large").fingerprint
    shutil.rmtree(moved)
    register_model(pair, mark)
    assert [(one.name, bool(one.query_fingerprint)) for one in read_registry()] == [("large", False), ("pair", True)]
    (note,) = pair.glob(PairRecord.FILE_NAME)
    queries = PairRecord.model_validate_json(note.read_bytes()).queries
    edit(note, queries=queries.model_copy(update={"fingerprint": "0" * 32}).model_dump())
    assert read_registry()[1].check()[0] == "changed"


def test_command(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(f"the cat sleeps on mat {number}" for number in range(60)))
    command = ["model", "pair", "--documents", str(models["large"]), "--queries"]
    output = ["-o", str(tmp_path / "made"), "--texts", str(tmp_path / "texts.txt")]
    done = CliRunner().invoke(cli, [*command, str(models["small"]), *output, "--accept-disagreement", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["agreement"]["texts"] == 60
    assert [one.name for one in read_registry()] == ["made"]
    shown = CliRunner().invoke(cli, [*command, str(models["small"]), "-o", str(tmp_path / "made")])
    assert "for queries" in shown.stdout
    assert "rank agreement" in shown.stdout
