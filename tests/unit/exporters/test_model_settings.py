"""Every setting of a model folder is applied as sentence-transformers applies it, changes nothing, or is refused."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, Pooling, Transformer
from transformers import PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from es_sbert.bundle.bundle import EncoderManifest
from es_sbert.bundle.known_settings import CONFIGS, ROTARY_CONFIGS, TABLES
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import ModelError, UnsupportedSetting, UsageError
from es_sbert.exporters import export_model
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import write_checkpoint
from tests.unit.exporters.comparison import TEXTS, assert_same, numpy_vectors, their_vectors

pytestmark = pytest.mark.slow


def _parameters(function: Any) -> set[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, each in inspect.signature(function).parameters.items() if each.kind in kinds} - {"self"}


def _taken_from_kwargs(*functions: Any) -> set[str]:
    source = "".join(map(inspect.getsource, functions))
    return set(re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', source))


# Arguments of constructors that no file can give: objects, and names of files that the library finds by itself.
_NOT_IN_FILES = {
    "self", "model_name_or_path", "vocab", "merges", "tokenizer_object", "gguf_file", "post_processor", "tokenizer",
    "model_specific_special_tokens", "kwargs", "args", "tokenizer_truncation", "tokenizer_padding",
}  # fmt: skip


def _tokenizer_settings() -> set[str]:
    constructors = [PreTrainedTokenizerBase.__init__, TokenizersBackend.__init__]
    names = _taken_from_kwargs(*constructors)
    for name in ("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer"):
        names |= _parameters(getattr(transformers, name).__init__)
    return {name for name in names - _NOT_IN_FILES if not name.startswith("_")}


def _model_settings() -> set[str]:
    """What sentence-transformers reads and writes of config_sentence_transformers.json."""
    source = "".join(inspect.getsource(base) for base in SentenceTransformer.__mro__[:3])
    read = re.findall(r'model_config(?:\.get\(|\[)\s*"(\w+)"', source)
    written = re.findall(r'^ {12}"(\w+)": self\.|config\["(\w+)"\] = ', source, re.MULTILINE)
    return {*read, *(name for names in written for name in names if name)} - _NOT_IN_FILES


# Name of a table, and the settings that the installed libraries read.
INSTALLED: dict[str, set[str]] = {
    "sentence_bert_config.json": (
        _parameters(Transformer.__init__) | set(Transformer.config_keys) | {"tokenizer_args", "config_args"}
    )
    - _NOT_IN_FILES,
    "processing_kwargs": set(Transformer._VALID_PROCESSING_KWARGS_KEYS),
    "Pooling": {*_parameters(Pooling.__init__), *Pooling.config_keys},
    "Dense": set(Dense.config_keys),
    "Normalize": set(Normalize.config_keys),
    "LayerNorm": {"dimension", *LayerNorm.config_keys},
    "config_sentence_transformers.json": _model_settings(),
    "tokenizer_config.json": _tokenizer_settings(),
    **{name: set(transformers.AutoConfig.for_model(name).to_dict()) for name in (*CONFIGS, *ROTARY_CONFIGS)},
}


@pytest.mark.parametrize("name", INSTALLED)
def test_every_setting_of_the_installed_libraries_is_known(name: str) -> None:
    assert INSTALLED[name]
    assert INSTALLED[name] - TABLES[name].known == set()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each kind of tokenizer, with modules behind the pooling."""
    made = {}
    for architecture, tokenizer in (("bert", "BertTokenizer"), ("roberta", "RobertaTokenizer")):
        folder = write_checkpoint(
            tmp_path_factory.mktemp("models") / architecture,
            architecture,
            dense=[Dense(48, 24)],
            max_tokens=40,
            prompts={"query": "query: ", "document": "The passage: "},
        )
        _edit(folder / "tokenizer_config.json", ("tokenizer_class",), tokenizer)
        made[architecture] = folder
    return made


def _edit(path: Path, keys: tuple[str, ...], value: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    place = content
    for key in keys[:-1]:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    place[keys[-1]] = value
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def check(folder: Path) -> str:
    """`equal` or `refused`; an AssertionError for vectors that differ from sentence-transformers'."""
    try:
        ours = numpy_vectors(read_sentence_model(folder))  # it reads the folder as the graph's builder does
    except (ModelError, UsageError):  # a UsageError: the vocabulary has a token that the model has no vector for
        return "refused"
    try:
        theirs = their_vectors(folder)
    except Exception:  # of many types; a folder that it cannot open has no vectors to compare with
        return "not comparable"
    assert_same(ours, theirs)
    return "equal"


def mutated(folder: Path, target: Path, file: str, keys: tuple[str, ...], value: Any) -> Path:
    shutil.copytree(folder, target, dirs_exist_ok=True)
    _edit(target / file, keys, value)
    return target


SBERT, CONFIG, TOKENIZER = "sentence_bert_config.json", "config.json", "tokenizer_config.json"
SETTINGS = "config_sentence_transformers.json"
# File, setting, value, and what becomes of the folder.
CASES: list[tuple[str, str, Any, str]] = [
    (SBERT, "config_kwargs", {"num_hidden_layers": 1}, "equal"),
    (SBERT, "modality_config.text", {"method": "forward", "method_output_name": ["hidden_states", 1]}, "refused"),
    (SBERT, "modality_config.message", {"method": "forward", "method_output_name": "last_hidden_state"}, "refused"),
    (SBERT, "processing_kwargs", {"text": {"max_length": 16}}, "equal"),
    (SBERT, "processing_kwargs", {"text": {"add_special_tokens": False}}, "refused"),
    (SBERT, "document_length", 8, "equal"),
    (SBERT, "processing_kwargs", {"common": {"max_length": 9}}, "refused"),
    (SBERT, "processor_kwargs", {"sep_token": "a"}, "refused"),
    (SBERT, "processor_kwargs", {"model_max_length": 12}, "equal"),
    (SBERT, "tokenizer_args", {"do_lower_case": False, "add_prefix_space": True}, "equal"),
    (SBERT, "do_lower_case", True, "equal"),
    (SBERT, "model_kwargs", {"quantization_config": {"load_in_8bit": True}}, "refused"),
    (SBERT, "a_new_setting", 1, "refused"),
    (TOKENIZER, "do_lower_case", False, "equal"),
    (TOKENIZER, "strip_accents", False, "equal"),
    (TOKENIZER, "add_prefix_space", True, "equal"),
    (TOKENIZER, "split_special_tokens", True, "refused"),
    (TOKENIZER, "truncation_side", "left", "refused"),
    (TOKENIZER, "model_max_length", 9, "equal"),
    (TOKENIZER, "model_input_names", ["input_ids"], "refused"),
    ("2_Dense/config.json", "activation_function", "ReLU", "refused"),
    (CONFIG, "num_hidden_layers", 1, "equal"),
    (CONFIG, "is_decoder", True, "refused"),
    (CONFIG, "a_new_setting", 1, "refused"),
    ("1_Pooling/config.json", "include_prompt", False, "equal"),
    ("2_Dense/config.json", "use_residual", True, "refused"),  # its weights have no residual
    ("3_Normalize/config.json", "module_input_name", "token_embeddings", "refused"),  # into the sentence vector
    (SETTINGS, "truncate_dim", 8, "equal"),
    (SETTINGS, "truncate_dim", "8", "refused"),
    (SETTINGS, "model_type", "SparseEncoder", "refused"),
    (SETTINGS, "default_prompt_name", "query", "equal"),
    (SETTINGS, "requirements", {"sentence_transformers": ">=99"}, "refused"),
    # A requirement that is no version is skipped.
    (SETTINGS, "requirements", {"transformers": ">=4", "sentence_transformers": "the newest"}, "equal"),
    ("modules.json", "1.kwargs", ["task"], "refused"),
]


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
@pytest.mark.parametrize(("file", "setting", "value", "outcome"), CASES)
def test_setting_is_applied_or_refused(
    folders: dict[str, Path], tmp_path: Path, architecture: str, file: str, setting: str, value: Any, outcome: str
) -> None:
    folder = mutated(folders[architecture], tmp_path / "model", file, tuple(setting.split(".")), value)
    assert check(folder) == outcome


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "modernbert", "qwen3"])
def test_hidden_state_of_the_last_layer_is_the_last_unless_a_norm_follows(architecture: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture)
    plain = read_sentence_model(folder)
    layers_key = "n_layers" if architecture == "distilbert" else "num_hidden_layers"
    for state, is_last in ((-1, True), (plain.transformer_config[layers_key], True), (1, False), (99, False)):
        keys = ("modality_config", "text")
        _edit(folder / SBERT, keys, {"method": "forward", "method_output_name": ["hidden_states", state]})
        if is_last and architecture not in ("modernbert", "qwen3"):
            assert read_sentence_model(folder).fingerprint == plain.fingerprint
            continue
        with raises_as_recorded(UnsupportedSetting):
            read_sentence_model(folder)


def _all_settings(architecture: str) -> list[tuple[str, tuple[str, ...]]]:
    """Every setting of every table, with its file."""
    tables: list[tuple[str, tuple[str, ...], str]] = [
        (SBERT, (), SBERT),
        (SBERT, ("processor_kwargs",), TOKENIZER),
        (SBERT, ("config_kwargs",), architecture),
        (SBERT, ("model_kwargs",), "model_kwargs"),
        (SBERT, ("processing_kwargs",), "processing_kwargs"),
        (SBERT, ("processing_kwargs", "text"), "processing_kwargs.text"),
        (CONFIG, (), architecture),
        (TOKENIZER, (), TOKENIZER),
        ("1_Pooling/config.json", (), "Pooling"),
        ("2_Dense/config.json", (), "Dense"),
        ("3_Normalize/config.json", (), "Normalize"),
        ("config_sentence_transformers.json", (), "config_sentence_transformers.json"),
        ("modules.json", ("1",), "modules.json"),
    ]
    return [(file, (*place, key)) for file, place, table in tables for key in sorted(TABLES[table].known)]


VALUES = [True, False, 0, 1, 2, 7, 0.5, "x", "left", [], ["x"], {}, None]


@given(st.data())
@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_any_value_of_any_setting_is_applied_or_refused(
    folders: dict[str, Path], architecture: str, data: st.DataObject
) -> None:
    file, keys = data.draw(st.sampled_from(_all_settings(architecture)))
    value = data.draw(st.sampled_from(VALUES))
    with tempfile.TemporaryDirectory() as folder:
        check(mutated(folders[architecture], Path(folder), file, keys, value))


def test_unknown_setting_is_accepted_on_request_and_kept_in_the_bundle(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = mutated(folders["bert"], tmp_path / "model", CONFIG, ("a_new_setting",), 1)
    with raises_as_recorded(UnsupportedSetting):
        export_model(folder, tmp_path / "refused", ["fp32"])
    manifest = export_model(folder, tmp_path / "bundle", ["fp32"], ignore_settings=["a_new_setting"])
    assert isinstance(manifest, EncoderManifest)
    assert manifest.ignored_settings == ["a_new_setting"]
    # The bundle opens without saying it again.
    assert read_sentence_model(tmp_path / "bundle").fingerprint == read_sentence_model(folders["bert"]).fingerprint
    with Encoder(tmp_path / "bundle", device="cpu", precision="fp32") as encoder:
        assert encoder.encode(TEXTS).shape == (len(TEXTS), 24)
