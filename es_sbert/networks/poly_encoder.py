"""The poly-encoder and its attention: between bi-encoder and cross-encoder (Humeau et al. 2020, arXiv 1905.01969)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from es_sbert.networks.pooling import MIN_NORM, normalize_vectors
from es_sbert.networks.siamese_encoder import SiameseEncoder, eval_mode
from es_sbert.runtime.batching import unique_rows
from es_sbert.runtime.tokenizer import check_pairs


def attend_with_codes(tokens: Tensor, mask: Tensor, codes: Tensor) -> Tensor:
    """Represent each context by m vectors: each code attends over the context's token vectors.

    yᵢ = Σⱼ wⱼ hⱼ with w = softmax(cᵢ · h₁, …, cᵢ · h_N): dot products as in the paper, without a scale.

    Args:
        tokens: The transformer's outputs h. *Shape:* ``(batch, tokens, width)``.
        mask: 1 for a token, 0 for padding. *Shape:* ``(batch, tokens)``; every row has a token.
        codes: The learned codes c. *Shape:* ``(m, width)``.

    Returns:
        *Shape:* ``(batch, m, width)``.
    """
    logits = codes @ tokens.mT  # (batch, m, tokens)
    logits = logits.masked_fill(mask.unsqueeze(1) == 0, float("-inf"))
    return torch.softmax(logits, dim=-1) @ tokens


def attention_cosine(contexts: Tensor, candidates: Tensor) -> Tensor:
    """Each candidate attends over the m vectors of a context; the score is its cosine with the result.

    With s = (x · y₁, …, x · y_m) for a candidate x and w = softmax(s), the context's final vector is y = Σᵢ wᵢ yᵢ
    and the score x · y / (‖x‖ ‖y‖). The paper scores by the dot product. A cosine can be compared with STS gold scores,
    and the temperature was chosen for it. The score is 0 if x or y is zero.

    y itself is never computed: x · y = w · s, and ‖y‖² = wᵀ G w with Gᵢⱼ = yᵢ · yⱼ, so that a batch against all its
    candidates takes m numbers per pair instead of m + width.

    Args:
        contexts: *Shape:* ``(batch, m, width)``.
        candidates: *Shape:* ``(batch, candidates, width)``: those of each context; or ``(1, candidates, width)``:
            the same for all.

    Returns:
        *Shape:* ``(batch, candidates)``.
    """
    logits = candidates @ contexts.mT  # (batch, candidates, m)
    weights = torch.softmax(logits, dim=-1)  # (batch, candidates, m)
    gram = contexts @ contexts.mT  # (batch, m, m)
    squared = ((weights @ gram) * weights).sum(dim=-1)  # (batch, candidates): ‖y‖²
    has_direction = squared > MIN_NORM**2
    # Zeros are replaced before root and division: where() alone would let NaN through from the branch not taken.
    length = torch.where(has_direction, squared, 1.0).sqrt()  # (batch, candidates)
    # x/‖x‖ · y, computed from the unit candidate: its gradient is finite at zero.
    dots = (weights * (normalize_vectors(candidates) @ contexts.mT)).sum(dim=-1)  # (batch, candidates)
    return torch.where(has_direction, dots / length, 0.0)


# Pairs scored at a time: each needs a context's m vectors.
_SCORED_PAIRS = 256


class PolyEncoder(nn.Module):
    """A poly-encoder in torch; `es_sbert.networks.pair_scorer_folder` opens one.

    The first text of a pair is the context: m learned codes attend over its token vectors. The second is the candidate:
    its one vector, which can be stored, attends over the m vectors of the context. Both go through the same
    transformer, as in a siamese network; the paper has two, which start from the same weights. The candidate's vector
    is that of the encoder's own pooling; the paper takes the first token's.

    It is a `PairScorer` for evaluation.

    Args:
        encoder: A siamese encoder of one pooling mode without Dense layers, so that sentence vectors are as wide as
            token vectors.
        codes: *Shape:* ``(m, width)``.
    """

    def __init__(self, encoder: SiameseEncoder, codes: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.codes = nn.Parameter(codes)

    @property
    def name(self) -> str:
        return self.encoder.name

    @property
    def device(self) -> torch.device:
        return self.codes.device

    def contexts(self, ids: Tensor, mask: Tensor, padded: bool = True) -> Tensor:
        """Compute the m vectors of each first text.

        Args:
            ids, mask: *Shape:* ``(batch, tokens)``.
            padded: Whether a text is shorter than the longest.

        Returns:
            *Shape:* ``(batch, m, width)`` float32.
        """
        tokens = self.encoder.transformer(input_ids=ids, attention_mask=mask if padded else None).last_hidden_state
        # Sums over many tokens lose too much in half precision.
        with torch.autocast(ids.device.type, enabled=False):
            return attend_with_codes(tokens.float(), mask, self.codes)

    def candidates(self, ids: Tensor, mask: Tensor, padded: bool = True) -> Tensor:
        """Compute the vector of each second text, ``(batch, width)`` float32, from token ids ``(batch, tokens)``."""
        vectors: Tensor = self.encoder(ids, mask, padded)
        return vectors

    def compare(self, contexts: Tensor, candidates: Tensor) -> Tensor:
        """Compute scores in [−1, 1], ``(batch, candidates)``; shapes as in `attention_cosine`."""
        with torch.autocast(contexts.device.type, enabled=False):
            return attention_cosine(contexts, candidates)

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Score pairs of a context and a candidate, without dropout.

        A text in several pairs goes through the transformer once per side.

        Returns:
            Scores in [−1, 1], of *shape* ``(pairs,)``.

        Raises:
            UsageError: the columns differ in length, or a text is not valid Unicode.
        """
        check_pairs(first, second)
        scores = np.empty(len(first), dtype=np.float32)  # (pairs,)
        with eval_mode(self):
            vectors, vector_of = self._candidate_vectors(second)
            rows = self.encoder.tokenize(first)
            kinds, kind_of = unique_rows(rows)
            # Contexts are m times as large as candidates: they are computed and used batch by batch.
            for members, ids, mask, _ in self.encoder.batches([rows[kind] for kind in kinds]):
                contexts = self.contexts(ids, mask)  # (batch, m, width)
                place = np.full(len(kinds), -1, dtype=np.int64)  # (kinds,): where in this batch
                place[members] = np.arange(len(members))
                pairs = np.flatnonzero(place[kind_of] >= 0)  # (pairs of this batch,)
                for start in range(0, len(pairs), _SCORED_PAIRS):
                    block = pairs[start : start + _SCORED_PAIRS]
                    places = torch.from_numpy(place[kind_of[block]]).to(self.device)
                    block_contexts = contexts[places]  # (block, m, width)
                    theirs = vectors[torch.from_numpy(vector_of[block])].to(self.device)  # (block, width)
                    scores[block] = self.compare(block_contexts, theirs.unsqueeze(1))[:, 0].cpu().numpy()
        return scores

    def _candidate_vectors(self, texts: Sequence[str]) -> tuple[Tensor, NDArray[np.int64]]:
        """Compute vectors of the distinct texts, ``(kinds, width)``, on the CPU, and each text's row, ``(texts,)``."""
        rows = self.encoder.tokenize(texts)
        kinds, kind_of = unique_rows(rows)
        vectors = torch.empty(len(kinds), self.codes.shape[1])  # (kinds, width)
        for members, ids, mask, _ in self.encoder.batches([rows[kind] for kind in kinds]):
            vectors[torch.from_numpy(members)] = self.candidates(ids, mask).cpu()
        return vectors, kind_of
