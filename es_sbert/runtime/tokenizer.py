"""Tokenize texts and pairs of texts with the model's own tokenizer.json."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.arguments import as_text
from es_sbert.bundle.bundle import PairFormat
from es_sbert.bundle.cross_encoder_model import CrossEncoderModel
from es_sbert.bundle.model_files import COPY_AGAIN
from es_sbert.bundle.modules import PromptKind
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.tokenizer_settings import apply_changes
from es_sbert.bundle.transformer_module import TextModel
from es_sbert.errors import BundleInvalid, UsageError
from es_sbert.messages import setting
from es_sbert.runtime.batching import mark_unpooled, pad
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.tokenizers_package import Tokenizer, normalizers
from es_sbert.runtime.word_cache import WordCache, WordCounts, reads_words_alone

TokenIds = NDArray[np.int64]


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as token ids, ready for the model.

    Attributes:
        ids: One int64 array of shape (tokens,) per text, including special tokens, truncated to the model's maximum.
            Tokens of a prompt that the model's pooling leaves out are marked (`batching.mark_unpooled`).
        tokens: *Shape:* ``(texts,)`` int64, tokens of each text before truncation, special tokens included; an estimate
            for a text of more than 100,000 characters, above `max_tokens` if the text was truncated.
        max_tokens: The model's maximum.
        words: The words that were looked up in the cache of words; none for other tokenizers.
    """

    ids: list[TokenIds]
    tokens: TokenIds
    max_tokens: int
    words: WordCounts = field(default_factory=WordCounts)

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def joined(cls, parts: Sequence[TokenizedTexts], max_tokens: int) -> TokenizedTexts:
        """Concatenate the texts of all parts."""
        tokens = np.concatenate([np.empty(0, dtype=np.int64), *(part.tokens for part in parts)])  # (texts,)
        words = WordCounts(sum(part.words.words for part in parts), sum(part.words.new for part in parts))
        return cls([row for part in parts for row in part.ids], tokens, max_tokens, words)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """*Shape:* ``(texts,)``, True if the text was longer than the model reads."""
        return self.tokens > self.max_tokens


# A text of more characters is tokenized only as far as the model reads, and its number of tokens is estimated: to count
# them would take a second and a hundred megabytes of memory for each million characters.
MAX_COUNTED_CHARACTERS = 100_000
# Characters of such a text that are tokenized: at least this many, and this many per token that the model reads. Most
# texts have five per token.
_MIN_PREFIX = 16_384
_PREFIX_PER_TOKEN = 16
# A beginning with too few tokens grows by this factor; it ends at white space within this distance.
_PREFIX_GROWTH = 4
_WHITE_SPACE_WINDOW = 4096
_WHITE_SPACE = re.compile(r"\s")


class ModelTokenizer:
    """The tokenizer of a model, and the tokens for which its weights have no vector.

    Args:
        model: The model.

    Raises:
        BundleInvalid: tokenizer.json is broken, or the special tokens fill the model's maximum or have no vectors.
    """

    def __init__(self, model: TextModel) -> None:
        self._tokenizer: Tokenizer = load_model_tokenizer(model)
        self._name = model.name
        self._folder = model.folder
        # Texts are truncated and padded here, because the tokenizer does not report their length before truncation.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._adds_special = model.adds_special_tokens
        self._without_vector = _tokens_without_vector(self._tokenizer, model.transformer_config.get("vocab_size"))
        empty = ("", "") if model.reads_pairs else ("",)
        self._around = self._tokenizer.encode(*empty).ids if self._adds_special else []
        if absent := self._without_vector.keys() & self._around:
            raise BundleInvalid(
                f"{model.folder} has no vector for {self._without_vector[min(absent)]}, which its tokenizer puts "
                f"around each text: config.json says that the vocabulary has {model.transformer_config['vocab_size']} "
                "tokens (vocab_size)",
                COPY_AGAIN,
            )
        if model.shortest_input <= len(self._around):
            raise BundleInvalid(
                f"{model.folder} reads {model.shortest_input} tokens, which its special tokens already fill",
                "Set max_seq_length in sentence_bert_config.json, or without modules.json model_max_length in "
                "tokenizer_config.json, to what the model was trained with.",
            )

    def readable(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without those that contain a token for which the model has no vector.

        Raises:
            BundleInvalid: most of them do: the tokenizer does not belong to the weights.
        """
        if not (missing := self._without_vector.keys()):
            return list(texts)
        kept = [text for text, ids in zip(texts, self._read(texts), strict=True) if missing.isdisjoint(ids.tolist())]
        if 2 * len(kept) < len(texts):
            raise BundleInvalid(
                f"the tokenizer in {self._folder} has {len(missing)} tokens for which the weights have no vector, and "
                "most texts contain one",
                "Copy the tokenizer of this model into the folder; this one belongs to another model.",
            )
        return kept

    def check_texts(self, texts: Sequence[str]) -> None:
        """Check that the model has a vector for every token of these texts.

        Raises:
            UsageError: it has none for a token, which the message names.
        """
        if self._without_vector:
            self._check_tokens(self._read(texts))

    def _read(self, texts: Sequence[str], *, special: bool = False) -> list[TokenIds]:
        # encode_batch_fast does not compute character offsets, which are not needed.
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        return [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]

    def _check_tokens(self, rows: Iterable[TokenIds]) -> None:
        for row in rows if self._without_vector else ():
            if missing := self._without_vector.keys() & set(row.tolist()):
                token = self._without_vector[min(missing)]
                raise UsageError(
                    f"a text contains {token}, a token for which {self._name} has no vector",
                    "Remove the token from the text, or choose a model whose vocabulary has it.",
                )


def _tokens_without_vector(tokenizer: Tokenizer, vectors: Any) -> dict[int, str]:
    """Find tokens without a row in the weights, such as a [MASK] that only transformers adds.

    Args:
        vectors: Number of rows (`vocab_size` in config.json).
    """
    if not isinstance(vectors, int):
        return {}
    if tokenizer.get_vocab_size() > vectors:
        return {number: token for token, number in tokenizer.get_vocab().items() if number >= vectors}
    # Ids of added tokens may have gaps. The whole vocabulary is not read: that takes a quarter of a second.
    added = tokenizer.get_added_tokens_decoder()
    return {number: token.content for number, token in added.items() if number >= vectors}


class SentenceTokenizer(ModelTokenizer):
    """The tokenizer of one sentence encoder: adds the prompt, counts tokens and truncates.

    Thread-safe: a call changes only a cache.

    Args:
        model: The model.

    Raises:
        BundleInvalid: as for `ModelTokenizer`.
    """

    def __init__(self, model: SentenceModel) -> None:
        super().__init__(model)
        self._model = model
        # Special tokens after a text ([SEP] or </s>); a truncated text keeps them.
        mask = self._tokenizer.encode("a", add_special_tokens=self._adds_special).special_tokens_mask
        self._suffix = next((n for n, special in enumerate(reversed(mask)) if not special), 0)
        self._words: WordCache | None = None
        if reads_words_alone(self._tokenizer):
            end = len(self._around) - self._suffix
            self._words = WordCache(self._tokenizer, self._around[:end], self._around[end:])
        # Read the file only once: it may have a vocabulary of a quarter of a million tokens.
        self._special_tokens = frozenset() if model.include_prompt else model.special_tokens()
        self._prompt_lengths: dict[str, int] = {}
        added = self._tokenizer.get_added_tokens_decoder()
        # If a text is cut inside an added token, its rest gives new tokens: at most four (one per byte) per character.
        self._uncertain_tokens = 16 + 4 * max((len(token.content) for token in added.values()), default=0)

    def __call__(self, texts: Sequence[str], kind: PromptKind | None = None) -> TokenizedTexts:
        """Tokenize texts.

        Of a text with more than `MAX_COUNTED_CHARACTERS` characters, only the beginning is read, far enough that its
        ids equal those of the whole text; `tokens` is then an estimate, and never below the tokens that were read.

        Args:
            texts: Any texts; an empty text has only the special tokens.
            kind: Kind of the texts, whose prompt is prepended.

        Raises:
            UsageError: a text is not valid Unicode (lone surrogates).
        """
        prompt = self._model.prompt(kind)
        maximum = self._model.input_limit(kind)
        try:
            inputs = [prompt + text for text in texts] if prompt else list(texts)
            prefixes = {
                n: prefix
                for n, text in enumerate(inputs)
                if (prefix := self._tokenize_prefix(text, maximum)) is not None
            }
            ids, words = self._token_ids([text for n, text in enumerate(inputs) if n not in prefixes])  # each (tokens,)
        except (TypeError, UnicodeEncodeError):
            for text in texts:
                as_text(text)
            raise
        lengths = list(map(len, ids))
        rows = [truncate_ids(row, maximum, self._suffix) for row in ids]
        for number, (row, tokens) in sorted(prefixes.items()):
            rows.insert(number, row)
            lengths.insert(number, tokens)
        self._check_tokens(rows)
        if prompt and not self._model.include_prompt:
            if prompt not in self._prompt_lengths:
                self._prompt_lengths[prompt] = self._prompt_length(prompt)
            skipped = self._prompt_lengths[prompt]
            rows = [mark_unpooled(row, skipped) for row in rows]
        return TokenizedTexts(rows, np.array(lengths, dtype=np.int64), maximum, words)

    def _token_ids(self, texts: Sequence[str]) -> tuple[list[TokenIds], WordCounts]:
        return self._words(texts) if self._words else (self._read(texts, special=self._adds_special), WordCounts())

    def _prompt_length(self, prompt: str) -> int:
        """Count the tokens of a prompt, as sentence-transformers does to leave them out of the pooling.

        It tokenizes the prompt alone, and does not count the last token if it is a special one.
        """
        [ids] = self._read([prompt], special=self._adds_special)
        ids = truncate_ids(ids, self._model.max_tokens, self._suffix)
        if not len(ids):
            return 0
        return len(ids) - (self._tokenizer.id_to_token(int(ids[-1])) in self._special_tokens)

    def _tokenize_prefix(self, text: str, maximum: int) -> tuple[TokenIds, int] | None:
        """Tokenize the beginning of a very long text: the ids that the model reads, and an estimate of all tokens.

        None if all of the text is needed: it is short, or its beginning does not fill the model's maximum.
        """
        if len(text) <= MAX_COUNTED_CHARACTERS:
            return None
        suffix = self._suffix
        length = max(_MIN_PREFIX, _PREFIX_PER_TOKEN * maximum)
        while length < len(text):
            space = _WHITE_SPACE.search(text, length, length + _WHITE_SPACE_WINDOW)
            length = space.start() if space else length
            encoding = self._tokenizer.encode(text[:length], add_special_tokens=self._adds_special)
            ids = encoding.ids
            if self._stable_prefix_length(encoding.word_ids) >= maximum - suffix:
                row = truncate_ids(np.asarray(ids, dtype=np.int64), maximum, suffix)  # (max_tokens,)
                return row, max(maximum + 1, round(len(ids) * len(text) / length))
            length *= _PREFIX_GROWTH
        return None

    def _stable_prefix_length(self, words: Sequence[int | None]) -> int:
        """Return the number of tokens at the beginning of a prefix that equal those of the whole text.

        Words are tokenized one by one. The last word is uncertain, since it may continue after the cut, and so are
        tokens that may be part of a token that was added to the vocabulary.

        Args:
            words: Number of the word of each token; None for special tokens.
        """
        last = max((word for word in words if word is not None), default=None)
        return 0 if last is None else max(0, words.index(last) - self._uncertain_tokens)

    def make_chunker(self, tokens: int, overlap: int, kind: PromptKind | None = None) -> Chunker:
        """Create a chunker for this model.

        Raises:
            UsageError: `tokens` exceeds the model's maximum or is too small for any text.
        """
        limit = self._model.input_limit(kind)
        if tokens > limit:
            raise UsageError(
                f"{self._model.name} reads {limit} tokens, not {tokens}",
                f"Set {setting('passages')} to at most {limit}.",
            ).about("passages", tokens)
        return Chunker(self._tokenizer, tokens, overlap, self._model.prompt(kind))


def truncate_ids(ids: TokenIds, maximum: int, suffix: int) -> TokenIds:
    """Truncate token ids to `maximum`; the `suffix` special tokens at the end of the text are kept.

    Args:
        ids: *Shape:* ``(tokens,)``.

    Returns:
        *Shape:* ``(min(tokens, maximum),)``.
    """
    if len(ids) <= maximum:
        return ids
    return np.concatenate([ids[: maximum - suffix], ids[len(ids) - suffix :]])


def load_model_tokenizer(model: TextModel) -> Tokenizer:
    """Load the tokenizer of a model, as transformers builds it.

    Raises:
        BundleInvalid: tokenizer.json, or the vocabulary in its place, is broken.
    """
    path, content = model.tokenizer_file, None
    if model.tokenizer_changes or not path.exists():
        content = json.dumps(apply_changes(model.tokenizer_json(), model.tokenizer_changes))
    try:
        tokenizer = Tokenizer.from_file(str(path)) if content is None else Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception for every kind of broken file
        raise BundleInvalid(f"the tokenizer in {path.parent} is broken: {error}", COPY_AGAIN) from error
    _check_unknown_words(tokenizer, path.parent)
    normalizer = tokenizer.normalizer
    steps: Any = normalizer if isinstance(normalizer, normalizers.Sequence) else [normalizer]
    if model.lowercase and not any(isinstance(step, normalizers.Lowercase) for step in steps):
        # As in sentence-transformers this is a step of the tokenizer, so that special tokens spelled out in a text
        # ([SEP]) are still recognized.
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *filter(None, steps)])
    return tokenizer


_UNKNOWN_WORD = "\U00013000"  # a hieroglyph


def _check_unknown_words(tokenizer: Tokenizer, place: Path) -> None:
    """Check that the tokenizer has a token for words that it does not know, so that it can read any text.

    Raises:
        BundleInvalid: it has none.
    """
    try:
        tokenizer.encode(_UNKNOWN_WORD)
    except Exception as error:  # the library raises bare Exception
        raise BundleInvalid(
            f"the tokenizer in {place} cannot read unknown words: {error}",
            "Add its unknown token, such as [UNK], to the vocabulary, or use another model.",
        ) from error


def check_pairs(first: Sequence[str], second: Sequence[str]) -> None:
    """Check that two columns of texts have the same length.

    Raises:
        UsageError: the columns differ in length.
    """
    if len(first) != len(second):
        raise UsageError(
            f"got {len(first)} first texts and {len(second)} second texts", "Pass two sequences of equal length."
        )


@dataclass(frozen=True)
class TokenizedPairs:
    """Pairs as token ids, ready for the model.

    Attributes:
        ids, types: One int64 array of *shape* ``(tokens,)`` per pair: token ids with special tokens, and the text of
            the pair to which each token belongs.
        truncated: *Shape:* ``(pairs,)``, True if the pair was longer than the model reads.
    """

    ids: list[TokenIds]
    types: list[TokenIds]
    truncated: NDArray[np.bool_]

    @property
    def lengths(self) -> TokenIds:
        """*Shape:* ``(pairs,)``, tokens of each pair."""
        return np.fromiter(map(len, self.ids), dtype=np.int64, count=len(self.ids))


class PairTokenizer(ModelTokenizer):
    """The tokenizer of one cross-encoder. Thread-safe: a call changes nothing.

    Args:
        model: The model.
        pairs: The form in which its network takes pairs.

    Raises:
        BundleInvalid: as for `ModelTokenizer`.
    """

    def __init__(self, model: CrossEncoderModel, pairs: PairFormat) -> None:
        super().__init__(model)
        self._pairs = pairs
        self._prompt = model.prompt
        self._tokenizer.enable_truncation(
            model.max_tokens, strategy="longest_first", direction=pairs.truncation_side
        )  # the longer text is truncated first, as in transformers

    def __call__(self, first: Sequence[str], second: Sequence[str]) -> TokenizedPairs:
        """Tokenize pairs, with the model's prompt in front of the first texts.

        Raises:
            UsageError: a text is not valid Unicode (lone surrogates).
        """
        prompted = [self._prompt + text for text in first] if self._prompt else first
        pairs = list(zip(prompted, second, strict=True))
        try:
            encodings = self._tokenizer.encode_batch_fast(pairs)
        except (TypeError, UnicodeEncodeError):
            for text in (*first, *second):
                as_text(text)
            raise
        ids = [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]
        self._check_tokens(ids)
        return TokenizedPairs(
            ids,
            [np.asarray(encoding.type_ids, dtype=np.int64) for encoding in encodings],
            np.fromiter((bool(encoding.overflowing) for encoding in encodings), dtype=np.bool_, count=len(pairs)),
        )

    def feed(
        self,
        tokenized: TokenizedPairs,
        batch: TokenIds,
        padded_length: Callable[[int, int], int] = lambda longest, texts: longest,
    ) -> dict[str, TokenIds]:
        """Build the graph's inputs for some pairs, each of *shape* ``(batch, length)``.

        Args:
            padded_length: Returns the padded length of a batch, from the tokens of its longest pair and the number of
                pairs.
        """
        length = padded_length(max(len(tokenized.ids[number]) for number in batch), len(batch))
        left = self._pairs.padding_side == "left"
        ids, mask = pad([tokenized.ids[number] for number in batch], self._pairs.padding_id, length=length, left=left)
        types, _ = pad([tokenized.types[number] for number in batch], length=length, left=left)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: inputs[name] for name in self._pairs.inputs}
