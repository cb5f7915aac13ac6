"""The tokenizer of a folder reads texts as transformers' own does, whatever its files say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    CamembertTokenizer,
    DistilBertTokenizer,
    GemmaTokenizer,
    MPNetTokenizer,
    Qwen2Tokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from es_sbert.bundle.model_files import read_json, read_optional_json
from es_sbert.bundle.tokenizer_settings import apply_changes, read_tokenizer_json, resolve_tokenizer
from es_sbert.errors import BundleInvalid
from es_sbert.exporters.parity import parity_sentences
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import keep_only_the_vocabulary

CORPUS = parity_sentences(64, 256)
TEXTS = [
    *CORPUS[:100], "The CAT", "a [MASK] b", "x<mask>y", "<mask> a", "a <s> b </s>", "[CLS] a [SEP]", "trailing  ",
    "İstanbul ß ﬁ", "a  b   c", "un##affable", "NOTUSED <s>NOTUSED", "[NEW] cat<x>guitar", "the dog <zz>",
]  # fmt: skip

_WORDPIECE = {
    BertTokenizer: ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    DistilBertTokenizer: ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    MPNetTokenizer: ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"],
}
_MODEL_TYPES = {
    BertTokenizer: "bert", DistilBertTokenizer: "distilbert", MPNetTokenizer: "mpnet", RobertaTokenizer: "roberta",
    XLMRobertaTokenizer: "xlm-roberta", CamembertTokenizer: "camembert", Qwen2Tokenizer: "qwen3",
    GemmaTokenizer: "gemma3_text",
}  # fmt: skip
CLASSES = list(_MODEL_TYPES)


def _trained(kind: type) -> Any:
    """A small tokenizer of a class, trained on the parity sentences."""
    if kind in _WORDPIECE:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=_WORDPIECE[kind], show_progress=False)
        tokenizer.train_from_iterator(CORPUS, trainer)
        return kind(vocab=tokenizer.get_vocab())
    if kind is Qwen2Tokenizer:
        tokenizer = Qwen2Tokenizer().train_new_from_iterator([CORPUS], 600, show_progress=False)
        # As Qwen 3 Embedding ends its texts.
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>",
            special_tokens=[("<|endoftext|>", tokenizer.convert_tokens_to_ids("<|endoftext|>"))],
        )
        return tokenizer
    if kind is GemmaTokenizer:
        return _trained_gemma()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    if kind is RobertaTokenizer:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        bpe = trainers.BpeTrainer(
            vocab_size=600, special_tokens=[*special, "<mask>"], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(CORPUS, bpe)
        model = json.loads(tokenizer.to_str())["model"]
        return RobertaTokenizer(vocab=model["vocab"], merges=list(map(tuple, model["merges"])))
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )  # fmt: skip
    unigram = trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, unigram)
    vocabulary = list(map(tuple, json.loads(tokenizer.to_str())["model"]["vocab"]))
    return kind(vocab=[*vocabulary, ("<mask>", 0.0)])


def _trained_gemma() -> Any:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    made = GemmaTokenizer(vocab=model["vocab"], merges=list(map(tuple, model["merges"])))
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    return made


@pytest.fixture(scope="module", params=CLASSES, ids=lambda kind: kind.__name__)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers") / request.param.__name__
    _trained(request.param).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": _MODEL_TYPES[request.param]}))
    return folder


def check(folder: Path) -> dict[str, Any]:
    """Compare tokens and types of all texts, and of pairs of them, with transformers'; what was changed for texts."""
    library = AutoTokenizer.from_pretrained(str(folder))
    check_texts(folder, library, [*TEXTS[1:], TEXTS[0]])
    return check_texts(folder, library, None)


def check_texts(folder: Path, library: Any, second: list[str] | None) -> dict[str, Any]:
    """Compare the texts, or their pairs with other texts."""
    settings, config = read_optional_json(folder / "tokenizer_config.json"), read_json(folder / "config.json")
    file = read_tokenizer_json(folder, settings, config, pairs=second is not None)
    resolved = resolve_tokenizer(folder, file, settings, config, pairs=second is not None)
    assert resolved.is_known
    ours = Tokenizer.from_str(json.dumps(apply_changes(file, resolved.changes)))
    ours.no_truncation()
    ours.no_padding()
    theirs = library(TEXTS, second)
    read = ours.encode_batch(TEXTS if second is None else list(zip(TEXTS, second, strict=True)))
    for text, encoding, ids in zip(TEXTS, read, theirs["input_ids"], strict=True):
        assert encoding.ids == ids, text
    for encoding, types in zip(read, theirs.get("token_type_ids", ()), strict=False):
        assert encoding.type_ids == types
    has_types = any(any(types) for types in theirs.get("token_type_ids", []))
    assert resolved.uses_token_types == has_types
    return resolved.changes


def test_saved_tokenizer_is_read_from_its_file(saved: Path) -> None:
    assert check(saved) == {}


SETTINGS: dict[str, dict[str, Any]] = {
    "case": {"do_lower_case": False},
    "accents": {"strip_accents": False},
    "accents without case": {"do_lower_case": False, "strip_accents": True},
    "chinese": {"tokenize_chinese_chars": False},
    "prefix space": {"add_prefix_space": True},
    "no prefix space": {"add_prefix_space": False},
    "generic class": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "newer name of the generic class": {"tokenizer_class": "TokenizersBackend"},
    "python class": {"tokenizer_class": "PreTrainedTokenizer"},
    "no class": {"tokenizer_class": None},
    "other mask": {"mask_token": "[NEW]"},
    "other unknown token": {"unk_token": "the"},
    "more special tokens": {"extra_special_tokens": ["<x>", "cat"]},
    "more special tokens, old name": {"additional_special_tokens": ["guitar"]},
    "special tokens by name": {"extra_special_tokens": {"image_token": "<x>"}},
    "empty token": {"extra_special_tokens": ["", "<x>"]},
    "a token of its own name": {"image_token": "<x>"},
    "no mask": {"mask_token": None},
    "types": {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    "no types": {"model_input_names": ["input_ids", "attention_mask"]},
    "added tokens": {
        "added_tokens_decoder": {
            "5": {"content": "the", "lstrip": True, "rstrip": False, "normalized": True, "single_word": True,
                  "special": False},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_tokenizer_config_is_read_as_transformers_reads_it(
    saved: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(saved, folder)
    kept = {key: value for key, value in read_json(folder / "tokenizer_config.json").items() if key not in settings}
    changed = {key: value for key, value in settings.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept | changed))
    assert all(token["content"] for token in check(folder).get("added_tokens", ()))  # they are in the fingerprint


def test_vocabulary_without_a_tokenizer_file_is_read(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "old")
    keep_only_the_vocabulary(folder)
    if saved.name in ("XLMRobertaTokenizer", "CamembertTokenizer", "Qwen2Tokenizer", "GemmaTokenizer"):
        with raises_as_recorded(BundleInvalid):
            read_tokenizer_json(folder, {}, read_json(folder / "config.json"))
    else:
        check(folder)


def _types_of_one(tokenizer: dict[str, Any]) -> None:
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 1}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {},
    }


FILES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no normalizer": lambda tokenizer: tokenizer.update(normalizer=None),
    "another normalizer": lambda tokenizer: tokenizer.update(normalizer={"type": "Lowercase"}),
    "another pre-tokenizer": lambda tokenizer: tokenizer.update(pre_tokenizer={"type": "Whitespace"}),
    "a normalizer that strips": lambda tokenizer: tokenizer.update(
        normalizer={"type": "Strip", "strip_left": True, "strip_right": True}
    ),
    "a template in a sequence": lambda tokenizer: tokenizer.update(
        post_processor={"type": "Sequence", "processors": [tokenizer["post_processor"]]}
    ),
    "no template": lambda tokenizer: tokenizer.update(post_processor=None),
    "another template": _types_of_one,
    "no added tokens": lambda tokenizer: tokenizer.update(added_tokens=[]),
}


@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "PreTrainedTokenizerFast"}], ids=["class", "generic"])
def test_tokenizer_file_is_read_as_transformers_reads_it(
    saved: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], settings: dict[str, Any]
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(saved, folder)
    tokenizer = read_json(folder / "tokenizer.json")
    change(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(read_json(folder / "tokenizer_config.json") | settings))
    check(folder)


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_special_tokens_of_older_files_are_read(saved: Path, tmp_path: Path, key: str) -> None:
    folder = tmp_path / "old"
    shutil.copytree(saved, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": f"{saved.name}Fast"}))
    mask = {"content": "<zz>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    special = {"mask_token": mask, "image_token": None, key: ["cat"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    (folder / "added_tokens.json").write_text(json.dumps({"dog": 700}))
    assert "added_tokens" in check(folder)


def test_flags_of_declared_tokens_are_read(saved: Path, tmp_path: Path) -> None:
    """Of special tokens, of others, and of one that only the settings name."""
    folder = tmp_path / "declared"
    shutil.copytree(saved, folder)
    added = read_json(folder / "tokenizer.json")["added_tokens"]
    flags = {"single_word": False, "normalized": False}
    declared = {str(token["id"]): {**token, **flags, "lstrip": True, "rstrip": True} for token in added}
    declared["900"] = {"content": "<zz>", "lstrip": True, "rstrip": True, "special": True, **flags}
    declared["901"] = {"content": "mat", "lstrip": True, "rstrip": False, "special": False, **flags}
    settings = {"added_tokens_decoder": declared, "extra_special_tokens": ["<zz>"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(read_json(folder / "tokenizer_config.json") | settings))
    check(folder)


@pytest.mark.parametrize("name", ["AlbertTokenizer", "NoSuchTokenizer"])
def test_class_that_is_not_known_is_not_guessed(saved: Path, name: str) -> None:
    file = read_json(saved / "tokenizer.json")
    resolved = resolve_tokenizer(saved, file, {"tokenizer_class": name}, {"model_type": "bert"})
    assert (resolved.class_name, resolved.changes, resolved.is_known) == (name, {}, False)


def test_class_for_another_kind_of_vocabulary_is_not_known(saved: Path) -> None:
    file = read_json(saved / "tokenizer.json")
    other = "RobertaTokenizer" if file["model"]["type"] != "BPE" else "BertTokenizer"
    assert not resolve_tokenizer(saved, file, {"tokenizer_class": other}, {"model_type": "bert"}).is_known
