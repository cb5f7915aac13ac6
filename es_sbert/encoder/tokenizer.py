"""Texts to token ids with the model's own tokenizer.json, in parallel (the tokenizers library, in Rust)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers

from es_sbert.bundle.model import PromptKind, SentenceModel
from es_sbert.encoder.passages import PassageSplitter
from es_sbert.encoder.types import TokenizedTexts
from es_sbert.errors import BundleInvalid, UsageError


class SentenceTokenizer:
    """The tokenizer of one model: puts the prompt in front, counts every token, cuts at the maximum.

    Thread-safe: a call changes nothing.

    Raises:
        BundleInvalid: tokenizer.json is broken, or leaves no room beside the special tokens.
    """

    def __init__(self, model: SentenceModel) -> None:
        self._model = model
        self._tokenizer = load_tokenizer(model.tokenizer_file, lowercase=model.lowercase)
        # Cut and padded here, not there: the tokenizer forgets how long a text was when it cuts it.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._suffix = self._special_suffix()
        if model.max_tokens <= self._tokenizer.num_special_tokens_to_add(is_pair=False):
            raise BundleInvalid(
                f"{model.folder} reads {model.max_tokens} tokens, which its special tokens already fill",
                "Set max_seq_length in sentence_bert_config.json to what the model was trained with.",
            )

    def __call__(self, texts: Sequence[str], kind: PromptKind | None = None) -> TokenizedTexts:
        """Tokenise.

        Args:
            texts: Any texts; an empty one gives the special tokens alone.
            kind: Which of the model's prompts to put in front.

        Raises:
            UsageError: a text is not valid Unicode (lone surrogates).
        """
        prompt = self._model.prompt(kind)
        # encode_batch_fast leaves character offsets out, which nobody here needs.
        try:
            encodings = self._tokenizer.encode_batch_fast([prompt + text for text in texts] if prompt else list(texts))
        except (TypeError, UnicodeEncodeError) as error:
            raise UsageError(f"a text cannot be tokenised: {error}", "Give valid Unicode strings.") from error
        ids = [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]  # each (tokens,)
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))  # (texts,)
        maximum = self._model.max_tokens
        return TokenizedTexts([cut(row, maximum, self._suffix) for row in ids], lengths, maximum)

    def splitter(self, tokens: int, overlap: int, kind: PromptKind | None = None) -> PassageSplitter:
        """What cuts texts into passages for this model; see there.

        Raises:
            UsageError: the model does not read so many tokens, or rules that leave no room.
        """
        if tokens > self._model.max_tokens:
            raise UsageError(
                f"{self._model.name} reads {self._model.max_tokens} tokens, not {tokens}",
                f"Give --passages at most {self._model.max_tokens}.",
            )
        return PassageSplitter(self._tokenizer, tokens, overlap, self._model.prompt(kind))

    def _special_suffix(self) -> int:
        """How many special tokens stand after a text ([SEP] or </s>): a cut text must keep them."""
        mask = self._tokenizer.encode("a").special_tokens_mask
        return next((n for n, special in enumerate(reversed(mask)) if not special), 0)


def cut(ids: NDArray[np.int64], maximum: int, suffix: int) -> NDArray[np.int64]:
    """The first `maximum` tokens, of which the last `suffix` are the text's own special tokens at its end.

    Args:
        ids: *Shape:* ``(tokens,)``.

    Returns:
        *Shape:* ``(min(tokens, maximum),)``.
    """
    if len(ids) <= maximum:
        return ids
    return np.concatenate([ids[: maximum - suffix], ids[len(ids) - suffix :]])


def load_tokenizer(path: Path, *, lowercase: bool = False) -> Tokenizer:
    """A tokenizer from its file.

    Args:
        lowercase: Lower-case texts before all else. As in sentence-transformers this is a step of the tokenizer, so
            that special tokens that stand in a text ([SEP]) are still found.

    Raises:
        BundleInvalid: the file is none.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of broken file
        raise BundleInvalid(f"{path} is no tokenizer: {error}", "Copy or download the model folder again.") from error
    if lowercase:
        rest = [tokenizer.normalizer] if tokenizer.normalizer is not None else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return tokenizer
