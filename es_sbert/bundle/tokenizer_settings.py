"""The tokenizer of a model folder, as transformers builds it from the folder's files.

transformers 5 uses a tokenizer.json unchanged only for its generic class (`TokenizersBackend`, called
`PreTrainedTokenizerFast` before). For a class with a constructor, such as `BertTokenizer`, it keeps the vocabulary and
builds the other parts from the settings in tokenizer_config.json, where for example `do_lower_case` overrides
tokenizer.json. `resolve_tokenizer` does the same without transformers, on the parsed JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from es_sbert.bundle.model_files import COPY_AGAIN, read_json, read_model_text, read_optional_json
from es_sbert.errors import BundleInvalid

Json = dict[str, Any]

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_GENERIC_CLASS = "TokenizersBackend"


@dataclass(frozen=True)
class ResolvedTokenizer:
    """The tokenizer of a model folder.

    Attributes:
        class_name: Class that transformers builds, without `Fast` at its end.
        changes: Parts that differ from tokenizer.json, by their names there (`normalizer`, `added_tokens`, …), and
            `model` with settings of the model without its vocabulary. Empty if nothing differs.
        uses_token_types: Whether the network gets a token type other than 0 for some tokens of a text.
        is_known: Whether this module knows how the class builds its parts. If not, `changes` is empty, and only
            transformers can tell whether anything differs from the file.
    """

    class_name: str
    changes: Json
    uses_token_types: bool
    is_known: bool = True


def read_tokenizer_json(folder: Path, settings: Json, config: Json, *, pairs: bool = False) -> Json:
    """Read the tokenizer.json of a transformer's folder, or build it from the vocabulary files of older folders.

    Args:
        folder: The folder.
        settings: Its tokenizer_config.json, with the arguments that override it.
        config: Its config.json.
        pairs: Whether it tokenizes pairs of texts, not single ones.

    Raises:
        BundleInvalid: the folder has neither tokenizer.json nor a usable vocabulary, or a file is broken.
    """
    path = folder / "tokenizer.json"
    if path.exists():
        return read_json(path)
    kind = _CLASSES.get(_class_name(settings, config))
    model = None
    try:
        if kind is not None and kind.model == "WordPiece" and (folder / "vocab.txt").exists():
            # Not `splitlines`, which also splits at form feeds and other separators.
            words = read_model_text(folder / "vocab.txt").removesuffix("\n").split("\n")
            model = {"type": "WordPiece", "vocab": {word.rstrip(): number for number, word in enumerate(words)}}
        elif kind is not None and kind.model == "BPE" and not kind.needs_file and (folder / "merges.txt").exists():
            merges = read_model_text(folder / "merges.txt").split("\n")
            merges = [line for line in merges if line and not line.startswith("#version")]
            model = {"type": "BPE", "vocab": read_json(folder / "vocab.json"), "merges": merges}
    except (OSError, ValueError) as error:
        raise BundleInvalid(f"the vocabulary in {folder} cannot be read: {error}", COPY_AGAIN) from error
    if model is None:
        raise BundleInvalid(
            f"{folder} has no tokenizer.json",
            "Write one with transformers: AutoTokenizer.from_pretrained(MODEL).save_pretrained(MODEL).",
        )
    empty: Json = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    made: Json = {"version": "1.0", **empty, "added_tokens": [], "model": model}
    return apply_changes(made, resolve_tokenizer(folder, made, settings, config, pairs=pairs).changes)


def apply_changes(tokenizer: Json, changes: Json) -> Json:
    """Return a tokenizer.json with the changes of a `ResolvedTokenizer` applied."""
    if "model" in changes:
        changes = {**changes, "model": {**tokenizer["model"], **changes["model"]}}
    return {**tokenizer, **changes}


def resolve_tokenizer(
    folder: Path, tokenizer: Json, settings: Json, config: Json, *, pairs: bool = False
) -> ResolvedTokenizer:
    """Find what transformers would change in a tokenizer.json.

    Args:
        folder: Folder of the transformer.
        tokenizer: Its tokenizer.json.
        settings: Its tokenizer_config.json, with the arguments that override it.
        config: Its config.json.
        pairs: Whether it tokenizes pairs of texts. Then their template is compared, else that of single texts.

    Raises:
        BundleInvalid: the files contradict each other.
    """
    name = _class_name(settings, config)
    build = _CLASSES.get(name)
    passes_types = "token_type_ids" in (settings.get("model_input_names") or (build.inputs if build else ()))
    model = (tokenizer.get("model") or {}).get("type")
    if build is None or (model not in (build.model, None) and build.parts is not None):
        return ResolvedTokenizer(name, {}, passes_types and _has_types(tokenizer, pairs=pairs), is_known=False)
    try:
        parts = _Builder(folder, tokenizer, settings, build, pairs=pairs).parts()
        changes = {
            part: value
            for part, value in parts.items()
            if _canonical(part, value, parts, types=passes_types, pairs=pairs)
            != _canonical(part, tokenizer.get(part), tokenizer, types=passes_types, pairs=pairs)
        }
        uses_types = passes_types and _has_types({**tokenizer, **changes}, pairs=pairs)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BundleInvalid(f"the tokenizer in {folder} is broken: {error!r}", COPY_AGAIN) from error
    return ResolvedTokenizer(name, changes, uses_types)


def special_tokens(folder: Path, tokenizer: Json, settings: Json, config: Json) -> frozenset[str]:
    """The tokens that transformers counts as special: those with a name, and further ones.

    Args:
        folder, tokenizer, settings, config: As for `resolve_tokenizer`.
    """
    _, named, extra = _read_tokens(folder, tokenizer, settings)
    kind = _CLASSES.get(_class_name(settings, config), _TokenizerClass(None))
    values = [*{**kind.specials, **named}.values(), *(extra or kind.extra)]
    return frozenset(map(_content, values))


def _has_types(tokenizer: Json, *, pairs: bool) -> bool:
    template = _canonical_template(tokenizer.get("post_processor"), types=True, pairs=pairs)
    return isinstance(template, list) and any(type_id for _, type_id in template)


def _class_name(settings: Json, config: Json) -> str:
    """Name of the class that `AutoTokenizer` builds, without `Fast`."""
    model_type = str(config.get("model_type", ""))
    registered = _REGISTERED_CLASSES.get(model_type)
    stated = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if stated is None:
        return registered or _GENERIC_CLASS
    name = str(stated).removesuffix("Fast")
    # For these types, some folders on the hub name the wrong class; the generic class is used.
    return _GENERIC_CLASS if model_type in _GENERIC_TYPES or name == "PreTrainedTokenizer" else name


@dataclass(frozen=True)
class _TokenizerClass:
    """The rules by which transformers builds the tokenizers of one class.

    Attributes:
        parts: Builds `normalizer`, `pre_tokenizer`, `post_processor` and `model`, as in tokenizer.json, without those
            that the class reads from the file. None for the class that uses the whole file.
        specials: Default for each special token.
        model: Type of the model in tokenizer.json.
        inputs: Names of the network's inputs.
        doubles_separator: Whether the texts of a pair have two separators between them, and tokens of one type.
        spaced_mask: Whether a `mask_token` given as a string includes the space before it.
        extra: Further special tokens, unless the folder names some.
        needs_file: Whether the tokenizer cannot be built from vocabulary files alone.
        plain_specials: Whether special tokens are added without their flags (`lstrip`, …).
    """

    parts: Callable[[_Builder], Json] | None
    specials: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    doubles_separator: bool = False
    spaced_mask: bool = False
    extra: tuple[str, ...] = ()
    needs_file: bool = False
    plain_specials: bool = False


class _Builder:
    """Builds the parts of one tokenizer. Token dictionaries are as in `added_tokens` of a tokenizer.json.

    Attributes:
        settings: Contents of tokenizer_config.json.
    """

    def __init__(self, folder: Path, tokenizer: Json, settings: Json, kind: _TokenizerClass, *, pairs: bool) -> None:
        self.settings = settings
        self._kind = kind
        self._pairs = pairs
        self._tokenizer = tokenizer
        self.vocabulary = _vocabulary(tokenizer["model"])
        self._declared, self._specials, extra = _read_tokens(folder, tokenizer, settings)
        for key, default in kind.specials.items():
            self._specials.setdefault(key, default)
        mask = self._specials.get("mask_token")
        if kind.spaced_mask and isinstance(mask, str):
            self._specials["mask_token"] = _token(mask, lstrip=True, special=True)
        self._extra = extra or list(kind.extra)
        self._added: dict[str, Json] = {}
        if kind.parts is None:
            self._added = {token["content"]: token for token in tokenizer.get("added_tokens") or ()}
        self._add_tokens()

    def parts(self) -> Json:
        """Build `added_tokens` and the parts of the class."""
        built = {} if self._kind.parts is None else self._kind.parts(self)
        return {**built, "added_tokens": sorted(self._added.values(), key=lambda token: token["id"])}

    def special(self, key: str) -> str:
        """Content of a special token."""
        value = self._specials[key]
        return value if isinstance(value, str) else str(value["content"])

    def id_of(self, key: str) -> int:
        """Id of a special token."""
        content = self.special(key)
        return int(self._added[content]["id"]) if content in self._added else self.vocabulary[content]

    def template(self, before: str, after: str) -> Json:
        """Build a template with a special token before and after a text, given by their names."""
        ids = {self.special(key): self.id_of(key) for key in (before, after)}

        def token(key: str, kind: int = 0) -> Json:
            return {"SpecialToken": {"id": self.special(key), "type_id": kind}}

        def text(name: str, kind: int = 0) -> Json:
            return {"Sequence": {"id": name, "type_id": kind}}

        single = [token(before), text("A"), token(after)]
        pair = [*single, text("B")]  # required but not used; the fingerprints of some sentence encoders cover it
        if self._pairs:
            doubled = self._kind.doubles_separator
            second = 0 if doubled else 1
            pair = [*single, *([token(after)] if doubled else []), text("B", second), token(after, second)]
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ids.items()},
        }

    def charsmap(self) -> str | None:
        """The compiled normalization of SentencePiece in the file, in base64."""
        normalizer = self._tokenizer.get("normalizer") or {}
        steps = normalizer.get("normalizers", [normalizer])
        return next((step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"), None)

    def _add_tokens(self) -> None:
        named = {value if isinstance(value, str) else value["content"] for value in self._specials.values()}
        tokens = [token for _, token in sorted(self._declared.items())]
        contents = {*self._added, *(token["content"] for token in tokens)}
        for value in [*self._specials.values(), *self._extra]:
            token = _token(value, special=True) if isinstance(value, str) else value
            if token["content"] not in contents:
                contents.add(token["content"])
                tokens.append(token)
        for token in tokens:
            special = bool(token["special"]) or token["content"] in named
            self._add({**token, "special": special})
        if self._kind.plain_specials:
            for content in [*named, *map(_content, self._extra)]:
                self._add(_token(content, special=True))

    def _add(self, token: Json) -> None:
        """Add a token like `tokenizers`: known tokens keep their ids, others get the next one."""
        content = token["content"]
        if not content:
            return
        if content in self._added:
            number = self._added[content]["id"]
        elif content in self.vocabulary:
            number = self.vocabulary[content]
        else:
            size = len(self.vocabulary)
            last = max((each["id"] for each in self._added.values()), default=-1)
            number = last + 1 if last >= size else size
        self._added[content] = {**token, "id": number}


def _vocabulary(model: Json) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {piece[0]: number for number, piece in enumerate(vocabulary)}


def _token(
    content: str,
    *,
    special: bool = False,
    normalized: bool | None = None,
    lstrip: bool = False,
    rstrip: bool = False,
    single_word: bool = False,
    **_: Any,
) -> Json:
    """A token as in `added_tokens`, without its id."""
    return {
        "content": content,
        "single_word": single_word,
        "lstrip": lstrip,
        "rstrip": rstrip,
        "normalized": not special if normalized is None else normalized,
        "special": special,
    }


def _read_tokens(
    folder: Path, tokenizer: Json, settings: Json
) -> tuple[dict[int, Json], dict[str, str | Json], list[str | Json]]:
    """Read the tokens that a folder declares: by id, special tokens by name, and further special tokens."""
    declared: dict[int, Json] = {}
    named = {key: value for key, value in settings.items() if key.endswith("_token") and isinstance(value, str | dict)}
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    if "added_tokens_decoder" in settings:
        declared = {int(number): _token(**token) for number, token in settings["added_tokens_decoder"].items()}
    else:
        special_map = read_optional_json(folder / "special_tokens_map.json")
        for key, value in special_map.items():
            if key == "extra_special_tokens" and isinstance(value, list):
                extra = [*extra, *(token for token in value if token not in extra)]
            elif key == "additional_special_tokens":
                extra = value if not settings.get("extra_special_tokens") else extra
            elif value is not None:
                named[key] = {**value, "special": True} if isinstance(value, dict) else value
        special = {_content(value) for value in [*named.values(), *extra]}
        for content, number in read_optional_json(folder / "added_tokens.json").items():
            declared[number] = _token(content, special=content in special)
        for token in tokenizer.get("added_tokens") or ():
            declared[token["id"]] = _token(**token)
    if isinstance(extra, dict):
        named, extra = named | extra, []
    by_content = {token["content"]: token for token in declared.values()}
    specials: dict[str, str | Json] = {}
    for key, value in named.items():
        plain = _token(**value) if isinstance(value, dict) else value
        # Tokens that only this class has are not looked up.
        specials[key] = by_content.get(_content(plain), plain) if key in SPECIAL_TOKENS else plain
    return declared, specials, [_token(**value) if isinstance(value, dict) else value for value in extra]


def _content(token: str | Json) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _wordpiece_parts(build: _Builder) -> Json:
    settings = build.settings
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "unk_token": build.special("unk_token"), "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        },
        "post_processor": build.template("cls_token", "sep_token"),
    }  # fmt: skip


def _roberta_parts(build: _Builder) -> Json:
    prefix = bool(build.settings.get("add_prefix_space", False))
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True},
        "model": {
            "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        },
        "post_processor": build.template("cls_token", "sep_token"),
    }  # fmt: skip


def _sentencepiece_parts(build: _Builder, unknown: int = 3) -> Json:
    charsmap = build.charsmap()
    scheme = "always" if build.settings.get("add_prefix_space", True) else "never"
    return {
        "normalizer": None if charsmap is None else {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True},
            ],
        },
        "model": {"unk_id": unknown, "byte_fallback": False},
        "post_processor": build.template("bos_token", "eos_token"),
    }


def _camembert_parts(build: _Builder) -> Json:
    return _sentencepiece_parts(build, build.vocabulary.get(build.special("unk_token"), 0))


# Qwen's pattern for words, numbers, punctuation and white space.
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _qwen2_parts(build: _Builder) -> Json:
    prefix = bool(build.settings.get("add_prefix_space") or False)
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _QWEN_PATTERN}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": False},
            ],
        },
        "model": {
            "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        },
    }  # fmt: skip


def _gemma_parts(build: _Builder) -> Json:
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
        },
        "model": {
            "dropout": None, "unk_token": build.special("unk_token"), "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
        },
    }  # fmt: skip


_BERT_TOKENS = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip
_ROBERTA_TOKENS = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
_QWEN2_TOKENS = dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>")
_GEMMA_TOKENS = {
    "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
_TYPED_INPUTS = ("input_ids", "token_type_ids", "attention_mask")

_CLASSES = {
    _GENERIC_CLASS: _TokenizerClass(None),
    "BertTokenizer": _TokenizerClass(_wordpiece_parts, _BERT_TOKENS, "WordPiece", _TYPED_INPUTS),
    "DistilBertTokenizer": _TokenizerClass(_wordpiece_parts, _BERT_TOKENS, "WordPiece"),
    "MPNetTokenizer": _TokenizerClass(
        _wordpiece_parts, {**_ROBERTA_TOKENS, "unk_token": "[UNK]"}, "WordPiece", doubles_separator=True,
        spaced_mask=True,
    ),
    "RobertaTokenizer": _TokenizerClass(_roberta_parts, _ROBERTA_TOKENS, "BPE", doubles_separator=True),
    "XLMRobertaTokenizer": _TokenizerClass(_sentencepiece_parts, _ROBERTA_TOKENS, "Unigram", doubles_separator=True),
    "CamembertTokenizer": _TokenizerClass(
        _camembert_parts, _ROBERTA_TOKENS, "Unigram", doubles_separator=True, spaced_mask=True,
        extra=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    ),
    "Qwen2Tokenizer": _TokenizerClass(_qwen2_parts, _QWEN2_TOKENS, "BPE", needs_file=True, plain_specials=True),
    "GemmaTokenizer": _TokenizerClass(_gemma_parts, _GEMMA_TOKENS, "BPE", needs_file=True),
}  # fmt: skip

# Class that transformers registers for a model type, used if the folder does not name one.
_REGISTERED_CLASSES = {
    "bert": "BertTokenizer", "distilbert": "BertTokenizer", "mpnet": "MPNetTokenizer", "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer", "nomic_bert": "BertTokenizer",
    "gte": "XLMRobertaTokenizer", "qwen3": "Qwen2Tokenizer", "gemma3_text": "GemmaTokenizer",
}  # fmt: skip
_GENERIC_TYPES = frozenset({"modernbert"})


def _canonical(part: str, value: Any, tokenizer: Json, *, types: bool, pairs: bool) -> Any:
    """Normalize a part, so that two parts are equal if they tokenize all texts the same."""
    if part == "added_tokens":
        fields = ("id", "content", "single_word", "lstrip", "rstrip", "normalized")
        return sorted(tuple(token[name] for name in fields) for token in value or ())
    if part == "model":
        settings = {key: value.get(key) for key in _MODEL_SETTINGS}
        return {key: None if each is False or each == "" else each for key, each in settings.items()}
    if part == "post_processor":
        return _canonical_template(value, types=types, pairs=pairs)
    if part == "normalizer":
        splits = _canonical_pre_tokenizer(tokenizer.get("pre_tokenizer"))[:1] == [{"type": "WhitespaceSplit"}]
        return _canonical_normalizer(value, splits_whitespace=splits)
    return _canonical_pre_tokenizer(value)


# Settings of the models in tokenizer.json, except their vocabularies.
_MODEL_SETTINGS = (
    "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "end_of_word_suffix", "fuse_unk",
    "byte_fallback", "ignore_merges", "dropout", "unk_id",
)  # fmt: skip


def _canonical_template(value: Any, *, types: bool, pairs: bool) -> Any:
    """Return the ids of the special tokens around the text or the pair, with types if they reach the network."""
    kind = (value or {}).get("type")
    second = int(types)
    if kind in ("BertProcessing", "RobertaProcessing"):
        sep = value["sep"][1]
        single = [(value["cls"][1], 0), ("A", 0), (sep, 0)]
        if not pairs:
            return single
        return [*single, *([(sep, 0), ("B", 0), (sep, 0)] if kind[0] == "R" else [("B", second), (sep, second)])]
    if kind == "Sequence":
        steps = [step for step in value["processors"] if step["type"] != "ByteLevel"]
        return _canonical_template(steps[0], types=types, pairs=pairs) if len(steps) == 1 else value
    if kind in (None, "ByteLevel"):
        return [("A", 0), *([("B", second)] if pairs else [])]
    if kind != "TemplateProcessing":
        return value
    template: list[tuple[Any, int]] = []
    for piece in value["pair" if pairs else "single"]:
        if "Sequence" in piece:
            template.append((piece["Sequence"]["id"], piece["Sequence"]["type_id"] if types else 0))
        else:
            ids = value["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
            template += [(number, piece["SpecialToken"]["type_id"] if types else 0) for number in ids]
    return template


def _canonical_normalizer(value: Any, *, splits_whitespace: bool) -> list[Any]:
    steps = [] if value is None else value["normalizers"] if value["type"] == "Sequence" else [value]
    canonical = []
    for step in steps:
        if step["type"] == "BertNormalizer" and step["strip_accents"] is None:
            step = {**step, "strip_accents": step["lowercase"]}
        # A step that joins spaces or removes those at the ends has no effect before a split at white space: skip it.
        joins_spaces = step["type"] == "Replace" and step["pattern"] == {"Regex": " {2,}"} and step["content"] == " "
        if splits_whitespace and (joins_spaces or step["type"] == "Strip"):
            continue
        canonical.append(step)
    return canonical


def _canonical_pre_tokenizer(value: Any) -> list[Any]:
    steps = [] if value is None else value["pretokenizers"] if value["type"] == "Sequence" else [value]
    canonical = []
    for step in steps:
        if step["type"] == "Metaspace":
            scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
            step = {
                "type": "Metaspace", "replacement": step["replacement"], "prepend_scheme": scheme,
                "split": step.get("split", True),
            }  # fmt: skip
        elif step["type"] == "ByteLevel":
            step = {
                "type": "ByteLevel",
                "add_prefix_space": step["add_prefix_space"],
                "regex": step.get("use_regex", True),
            }
        canonical.append(step)
    return canonical
