"""Detect drift: compare new documents with earlier ones by the distribution and the distances of their embeddings.

The functions here compute a report from vectors; `index_drift` reads the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.messages import escape_unprintable, pluralize, shorten
from es_sbert.vectors import Vectors

Doubles = NDArray[np.float64]

PERMUTATIONS = 999
# Level of the test: a weekly check should raise a false alarm less than once a year.
SIGNIFICANCE = 0.01
MIN_DOCUMENTS = 20
# A document counts as unlike the baseline if it is farther from it than this share of the baseline's own documents.
_FAR = 0.95
# Above this share of unlike documents, twice the expected one, the model should be checked.
_MANY_UNLIKE = 0.10
_BLOCK = 200
_SHOWN_TEXT = 80


class Drift(StrEnum):
    """Result of the comparison."""

    NONE = "none"
    DIFFERENT = "different"
    UNLIKE = "unlike"


@dataclass(frozen=True)
class EnergyTest:
    """Result of a permutation test.

    Attributes:
        distance: Energy distance between the two samples; 0 for equal distributions.
        p_value: Share of random splits of all vectors with at least this distance, never 0.
    """

    distance: float
    p_value: float


def energy_test(first: Vectors, second: Vectors, *, seed: int = 0, permutations: int = PERMUTATIONS) -> EnergyTest:
    """Test whether two samples of vectors have the same distribution.

    The energy distance (Székely and Rizzo 2013, "Energy statistics: A class of statistics based on distances") is twice
    the mean Euclidean distance between the samples minus the mean distances within each.

    Args:
        first, second: *Shape:* ``(documents, dimensions)`` each.
        seed: Seed of the permutations.
        permutations: Number of random splits to compare the distance with.

    Returns:
        The energy distance and its p-value.
    """
    count, total = len(first), len(first) + len(second)
    distances = _pairwise_distances(np.concatenate([first, second]).astype(np.float64))  # (total, total)
    random = np.random.default_rng(seed)
    observed = np.zeros((total, 1))
    observed[:count] = 1.0
    distance = float(_energy_distances(distances, observed)[0])
    extreme = 0
    for begin in range(0, permutations, _BLOCK):
        drawn = min(_BLOCK, permutations - begin)
        members = np.zeros((total, drawn))
        for column in range(drawn):
            members[random.permutation(total)[:count], column] = 1.0
        extreme += int(np.count_nonzero(_energy_distances(distances, members) >= distance - 1e-12))
    return EnergyTest(distance, (1 + extreme) / (1 + permutations))


def _pairwise_distances(vectors: Doubles) -> Doubles:
    """Compute Euclidean distances. *Shape:* ``(vectors, vectors)``."""
    squares = np.einsum("ij,ij->i", vectors, vectors)
    result: Doubles = np.sqrt(np.maximum(squares[:, None] + squares - 2 * vectors @ vectors.T, 0.0))
    np.fill_diagonal(result, 0.0)
    return result


def _energy_distances(distances: Doubles, members: Doubles) -> Doubles:
    """Compute the energy distance of each split. *Shape:* ``(splits,)``.

    Args:
        distances: Distances between all vectors. *Shape:* ``(total, total)``.
        members: 1 for the vectors of the first sample, 0 for the others. *Shape:* ``(total, splits)``.
    """
    first = members.sum(axis=0)  # (splits,)
    second = len(distances) - first
    to_first = distances @ members  # (total, splits): summed distances to the first sample
    within_first = (members * to_first).sum(axis=0)
    between = ((1 - members) * to_first).sum(axis=0)
    within_second = distances.sum() - within_first - 2 * between
    result: Doubles = 2 * between / (first * second) - within_first / first**2 - within_second / second**2
    return result


@dataclass(frozen=True)
class DriftSample:
    """A sample of the documents in an index.

    Attributes:
        ids, texts: Id and text of each document. Texts are empty if the mapping does not say which text was embedded.
        vectors: Vectors of unit length. *Shape:* ``(documents, dimensions)``.
        total: Number of documents that the sample was drawn from.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    vectors: Vectors
    total: int


@dataclass(frozen=True)
class TokenCounts:
    """Token counts of texts.

    Attributes:
        tokens, unknown, words: Number of tokens, of tokens that the vocabulary lacks, and of words in all texts.
    """

    tokens: int
    unknown: int
    words: int

    @property
    def unknown_share(self) -> float:
        return self.unknown / max(1, self.tokens)

    @property
    def tokens_per_word(self) -> float:
        return self.tokens / max(1, self.words)


@dataclass(frozen=True)
class DriftReport:
    """New documents of an index compared with a baseline.

    Attributes:
        index, field, model: The index and the field of the vectors, and the model that made them.
        new, new_total: Number of new documents in the sample, and of all new documents.
        baseline, baseline_total: Number of baseline documents in the sample, and of all baseline documents.
        test: Test of the vectors' distributions.
        nearest_new, nearest_baseline: Mean cosine to the nearest document in one half of the baseline, for the new
            documents and for the other half of the baseline.
        unlike: Share of the new documents that are farther from the baseline than 95 % of its own documents; about 0.05
            without drift.
        far: The new documents farthest from the baseline: id, cosine to the nearest document, text.
        tokens: Token counts of the baseline and of the new documents; None if not known.
    """

    index: str
    field: str
    model: str
    new: int
    new_total: int
    baseline: int
    baseline_total: int
    test: EnergyTest
    nearest_new: float
    nearest_baseline: float
    unlike: float
    far: Sequence[tuple[str, float, str]]
    tokens: tuple[TokenCounts, TokenCounts] | None

    @property
    def drift(self) -> Drift:
        """Whether the distributions differ, and if so, whether many new documents are unlike the baseline."""
        if self.test.p_value > SIGNIFICANCE:
            return Drift.NONE
        return Drift.UNLIKE if self.unlike > _MANY_UNLIKE else Drift.DIFFERENT

    def as_json(self) -> Json:
        return asdict(self) | {"drift": self.drift}


def compare_samples(
    index: str,
    field: str,
    model: str,
    new: DriftSample,
    baseline: DriftSample,
    *,
    tokens: tuple[TokenCounts, TokenCounts] | None = None,
    examples: int = 5,
    seed: int = 0,
) -> DriftReport:
    """Compare new documents with a baseline, and return the report.

    Args:
        index, field, model: Names shown in the report.
        new: Documents in random order.
        baseline: Documents in random order. The new documents are compared with one half. The other half is compared
            with it too, which shows how similar documents of the same kind are. The test uses both halves.
        tokens: See `DriftReport`.
        examples: Number of most distant documents to show.
        seed: Seed of the test.

    Raises:
        IndexMismatch: a sample has fewer than `MIN_DOCUMENTS` documents.
    """
    for what, sample in (("new documents", new), ("documents of the baseline", baseline)):
        if len(sample.ids) < MIN_DOCUMENTS:
            raise IndexMismatch(
                f"{index} has {len(sample.ids)} {what} with a vector in {field}",
                f"Choose the periods so that each has at least {MIN_DOCUMENTS} documents: `since`, `new`, `baseline`.",
            )
    half = len(baseline.ids) // 2
    reference, control = baseline.vectors[:half], baseline.vectors[half:]
    nearest = _nearest_cosines(new.vectors, reference)  # (new documents,)
    expected = _nearest_cosines(control, reference)  # (other half of the baseline,)
    order = np.argsort(nearest, kind="stable")[:examples]
    return DriftReport(
        index=index,
        field=field,
        model=model,
        new=len(new.ids),
        new_total=new.total,
        baseline=len(baseline.ids),
        baseline_total=baseline.total,
        test=energy_test(new.vectors, baseline.vectors, seed=seed),
        nearest_new=float(nearest.mean()),
        nearest_baseline=float(expected.mean()),
        unlike=float(np.mean(nearest < np.quantile(expected, 1 - _FAR))),
        far=[(new.ids[place], float(nearest[place]), new.texts[place]) for place in order],
        tokens=tokens,
    )


def _nearest_cosines(vectors: Vectors, reference: Vectors) -> Doubles:
    """Compute the cosine of each vector with the nearest vector of the reference. *Shape:* ``(vectors,)``."""
    cosines: Doubles = (vectors @ reference.T).max(axis=1).astype(np.float64)
    return cosines


def drift_lines(report: DriftReport) -> Iterator[str]:
    """Format the report as lines: the samples, a table, the test, examples, and the result with a recommendation."""
    yield (
        f"{report.index}.{report.field}: {report.new:,} of {pluralize(report.new_total, 'new document')}, "
        f"{report.baseline:,} of "
        f"{report.baseline_total:,} of the baseline, vectors of {escape_unprintable(report.model)}"
    )
    yield f"{'':<44}{'baseline':>10}{'new':>10}"
    nearest = "mean cosine to the nearest of the baseline"
    yield f"{nearest:<44}{report.nearest_baseline:>10.3f}{report.nearest_new:>10.3f}"
    yield f"{'farther than 95 % of the baseline':<44}{1 - _FAR:>10.1%}{report.unlike:>10.1%}"
    if report.tokens is not None:
        before, after = report.tokens
        yield f"{'tokens that the vocabulary lacks':<44}{before.unknown_share:>10.2%}{after.unknown_share:>10.2%}"
        yield f"{'tokens per word':<44}{before.tokens_per_word:>10.2f}{after.tokens_per_word:>10.2f}"
    yield f"Energy distance {report.test.distance:.4f}, p = {report.test.p_value:.3f} ({PERMUTATIONS} permutations)"
    if report.drift is not Drift.NONE:
        yield "Farthest from the baseline:"
        for id, cosine, text in report.far:
            yield f"  {cosine:.3f}  {escape_unprintable(id)}  {_one_line(text)}".rstrip()
    yield {
        Drift.NONE: "No drift: the new documents cannot be distinguished from the baseline. There is nothing to do.",
        Drift.DIFFERENT: (
            "The new documents differ from the baseline, but few of them are far from it. Check that searches still "
            "find them: `es-sbert evaluate --task retrieval --judgements FILE --index "
            f"{report.index}`"
        ),
        Drift.UNLIKE: (
            f"The new documents differ from the baseline, and {report.unlike:.0%} of them are far from it (5 % would "
            "be expected). Judge some queries about them and measure (`es-sbert evaluate --task retrieval --judgements "
            f"FILE --index {report.index}`). If quality has dropped, tune the model on the index: `es-sbert adapt "
            f"{report.index} -o FOLDER`"
        ),
    }[report.drift]


def _one_line(text: str) -> str:
    return escape_unprintable(shorten(" ".join(text.split()), _SHOWN_TEXT))
