"""Texts to token ids with the model's own tokenizer.json, in parallel (the tokenizers library, in Rust)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers

from es_sbert.bundle.model import PromptKind, SentenceModel
from es_sbert.encoder.passages import PassageSplitter
from es_sbert.encoder.types import TokenizedTexts
from es_sbert.errors import BundleInvalid, UsageError

# A text of more characters is tokenised only as far as the model reads, and its tokens are estimated: all of them would
# take a second and a hundred megabytes of memory for each million characters.
COUNTED_CHARACTERS = 100_000
# Characters of the beginning of such a text: at least, and for each token that the model reads. Most texts need five.
_BEGINNING = 16_384
_BEGINNING_PER_TOKEN = 16
# A beginning that gives too few tokens grows by this factor; it ends at white space that is this near.
_GROWTH = 4
_WHITE_SPACE_WITHIN = 4096
_WHITE_SPACE = re.compile(r"\s")


class SentenceTokenizer:
    """The tokenizer of one model: puts the prompt in front, counts the tokens, cuts at the maximum.

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
        added = self._tokenizer.get_added_tokens_decoder().values()
        # Half of an added token is read as something else: at most four tokens (bytes) a character.
        self._doubtful = 16 + 4 * max((len(token.content) for token in added), default=0)
        if model.max_tokens <= self._tokenizer.num_special_tokens_to_add(is_pair=False):
            raise BundleInvalid(
                f"{model.folder} reads {model.max_tokens} tokens, which its special tokens already fill",
                "Set max_seq_length in sentence_bert_config.json to what the model was trained with.",
            )

    def __call__(self, texts: Sequence[str], kind: PromptKind | None = None) -> TokenizedTexts:
        """Tokenise.

        Of a text of more than `COUNTED_CHARACTERS` characters only the beginning is read, far enough that its ids are
        those of the whole text; `tokens` is then an estimate, and never below what was read.

        Args:
            texts: Any texts; an empty one gives the special tokens alone.
            kind: Which of the model's prompts to put in front.

        Raises:
            UsageError: a text is not valid Unicode (lone surrogates).
        """
        prompt = self._model.prompt(kind)
        maximum = self._model.max_tokens
        try:
            inputs = [prompt + text for text in texts] if prompt else list(texts)
            begun = {n: found for n, text in enumerate(inputs) if (found := self._beginning(text)) is not None}
            # encode_batch_fast leaves character offsets out, which nobody here needs.
            whole = self._tokenizer.encode_batch_fast([text for n, text in enumerate(inputs) if n not in begun])
        except (TypeError, UnicodeEncodeError) as error:
            raise UsageError(f"a text cannot be tokenised: {error}", "Give valid Unicode strings.") from error
        ids = [np.asarray(encoding.ids, dtype=np.int64) for encoding in whole]  # each (tokens,)
        lengths = list(map(len, ids))
        rows = [cut(row, maximum, self._suffix) for row in ids]
        for number, (row, tokens) in sorted(begun.items()):
            rows.insert(number, row)
            lengths.insert(number, tokens)
        return TokenizedTexts(rows, np.array(lengths, dtype=np.int64), maximum)

    def _beginning(self, text: str) -> tuple[NDArray[np.int64], int] | None:
        """What the model reads of a text that is too long to tokenise whole, and about how many tokens it has.

        None where all of the text is needed: it is short, or so few words that its beginning does not fill the model.
        """
        if len(text) <= COUNTED_CHARACTERS:
            return None
        maximum, suffix = self._model.max_tokens, self._suffix
        length = max(_BEGINNING, _BEGINNING_PER_TOKEN * maximum)
        while length < len(text):
            space = _WHITE_SPACE.search(text, length, length + _WHITE_SPACE_WITHIN)
            length = space.start() if space else length
            encoding = self._tokenizer.encode(text[:length])
            ids = encoding.ids
            if self._certain(encoding.word_ids) >= maximum - suffix:
                row = np.asarray(ids[: maximum - suffix] + ids[len(ids) - suffix :], dtype=np.int64)  # (max_tokens,)
                return row, max(maximum + 1, round(len(ids) * len(text) / length))
            length *= _GROWTH
        return None

    def _certain(self, words: Sequence[int | None]) -> int:
        """How many of the first tokens of a beginning are those of the whole text.

        Words are tokenised one by one: in doubt are the last one, which may go on behind the cut, and what may be part
        of a token that was added to the vocabulary.

        Args:
            words: Number of the word of each token; None for special tokens.
        """
        last = max((word for word in words if word is not None), default=None)
        return 0 if last is None else max(0, words.index(last) - self._doubtful)

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
