"""Find the most similar pairs of a collection.

All pairs are compared with blocked matrix products, which never hold n² cosines.

Blocks of cosines are computed in float32, whose last digits depend on the shape of the block. Pairs close to the k-th
best are therefore computed again in float64. Cosines are rounded to `DECIMALS` decimals, and ties are broken by
position. So a result does not depend on the block size or on the number of threads.

Most pairs are far below the threshold. Upper bounds of their cosines show this with a quarter of the work. Vectors are
rotated so that the first components hold most of their length. By Cauchy-Schwarz, the others add at most the product of
the two remaining lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_sbert.arguments import check_arguments
from es_sbert.errors import UsageError
from es_sbert.settings import Cosine, Count
from es_sbert.vectors import Vectors

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]
# First positions, second positions and cosines of some pairs. *Shape:* (pairs,) each.
PairArrays = tuple[Int64Array, Int64Array, Float64Array]

DECIMALS = 5

# Rows and columns of a block: 4 MiB of float32 cosines, which fit into processor caches. Larger blocks take more time.
_BLOCK = 1024
# Maximum difference of a float32 cosine from the rounded one: half a unit of the last decimal, and the rounding errors
# of a product of several thousand dimensions.
_SLACK = 0.5 * 10**-DECIMALS + 5e-6
# Number of pairs whose cosines are computed at a time if they do not come from a block.
_PAIRS = 4096
# Maximum number of pairs in a block that are computed again one by one. If there are more, the whole block is computed.
_MAX_SINGLE_PAIRS = 4096
# Collections with fewer texts or dimensions are compared without bounds.
_BOUNDED_TEXTS, _BOUNDED_DIMENSIONS = 2 * _BLOCK, 128
# Bounds are not used below this threshold, because too many of them would reach it.
_BOUNDED_COSINE = 0.5
# Approximate number of vectors from which the rotation is computed.
_SAMPLE = 2048
# Tolerance above the float32 error of a squared length, so that rounding cannot make a bound too low.
_LENGTH_SLACK = 1e-5


class SimilarPair(NamedTuple):
    """Two texts and their cosine.

    Usage:
        ```python
        pair = most_similar_pairs(vectors)[0]
        print(texts[pair.first], texts[pair.second], pair.cosine)
        ```

    Attributes:
        first, second: Positions of the texts, from 0; the first comes before the second.
        cosine: Rounded to five decimals.
    """

    first: int
    second: int
    cosine: float


@check_arguments
def most_similar_pairs(
    vectors: Vectors,
    k: Count = 100,
    *,
    min_cosine: Cosine = -1.0,
    starts: Int64Array | None = None,
    block: Count = _BLOCK,
) -> list[SimilarPair]:
    """Find the k most similar pairs of texts of one collection, the most similar first.

    Usage:
        ```python
        print([pair.cosine for pair in most_similar_pairs(vectors, k=3)])
        ```

    Equal to computing all n(n-1)/2 cosines and sorting them, in memory that grows with n and not with n². Pairs with
    equal cosines are ordered by their first, then by their second position.

    Args:
        vectors: Embeddings, normalized or not. *Shape:* ``(vectors, dimensions)``.
        k: Number of pairs to find; all pairs are returned if there are fewer.
        min_cosine: Drop pairs whose cosine is below this value.
        starts: Row of each text's first vector, ascending from 0, if texts have several vectors (chunks). The cosine of
            two texts is that of their most similar vectors. None for one vector per text. *Shape:* ``(texts,)``.
        block: Texts per block; the cosines of two blocks are in memory at a time.

    Raises:
        UsageError: k, min_cosine or block is out of range, or a vector is zero or holds a value that is not finite.
    """
    texts = _with_bounds(_collection(vectors, starts))
    return _best_pairs(combinations_with_replacement(texts.blocks(block), 2), k, min_cosine)


@check_arguments
def pairs_above(
    vectors: Vectors, min_cosine: Cosine, *, starts: Int64Array | None = None, block: Count = _BLOCK
) -> Iterator[PairArrays]:
    """Find all pairs of one collection whose cosine is not below a threshold, block by block.

    Usage:
        ```python
        for first, second, cosines in pairs_above(vectors, 0.9):
            print(len(cosines))
        ```

    There may be n² pairs, so they are never all in memory.

    Args:
        vectors, starts, block: See `most_similar_pairs`.
        min_cosine: The threshold, -1 to 1.

    Yields:
        First positions, second positions and cosines of the pairs of a block. *Shape:* ``(pairs,)`` each.

    Raises:
        UsageError: as `most_similar_pairs`.
    """
    texts = _collection(vectors, starts)
    if min_cosine >= _BOUNDED_COSINE:
        texts = _with_bounds(texts)
    for rows, columns in combinations_with_replacement(texts.blocks(block), 2):
        found = _pairs_of_blocks(rows, columns, min_cosine)
        if len(found[0]):
            yield found


def pair_cosines(
    vectors: Vectors, first: Int64Array, second: Int64Array, starts: Int64Array | None = None
) -> Float64Array:
    """Compute the cosines of some pairs of texts, in float64, rounded like all cosines in this module.

    Args:
        vectors, starts: See `most_similar_pairs`.
        first, second: Positions of the texts. *Shape:* ``(pairs,)`` each.

    Returns:
        The cosines. *Shape:* ``(pairs,)``.
    """
    collection = _collection(vectors, starts)
    cosines = np.empty(len(first))
    for begin in range(0, len(first), _PAIRS):
        some = slice(begin, begin + _PAIRS)
        cosines[some] = _cosines_one_by_one(collection, collection, first[some], second[some])
    return round_cosines(cosines)


def vector_lengths(vectors: Vectors) -> Float64Array:
    """Compute Euclidean lengths, in float64.

    Args:
        vectors: *Shape:* ``(vectors, dimensions)``.

    Returns:
        The lengths. *Shape:* ``(vectors,)``.

    Raises:
        UsageError: a vector is zero, or holds a value that is not finite.
    """
    if vectors.ndim != 2:
        raise UsageError(f"vectors have the shape {vectors.shape}", "Pass a two-dimensional array.").about("vectors")
    lengths: Float64Array = np.sqrt(np.einsum("vd,vd->v", vectors, vectors, dtype=np.float64))
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(bad):
        reason = f"vector {bad[0]} is zero or holds a value that is not finite, so it has no cosine with others"
        raise UsageError(reason, "Leave such vectors out.").about("vectors")
    return lengths


def check_starts(starts: Int64Array | None, count: int) -> Int64Array | None:
    """Check the row of each text's first vector among `count` vectors. Return them; None if each text has one vector.

    Raises:
        UsageError: the rows do not ascend from 0.
    """
    if starts is None:
        return None
    starts = np.asarray(starts, np.int64)
    rows = np.append(starts, count)
    if rows[0] != 0 or (np.diff(rows) < 1).any():
        raise UsageError("starts do not ascend from 0", "Pass each text's first row.").about("starts", starts)
    return starts if len(starts) < count else None


@dataclass(frozen=True, eq=False)
class _Texts:
    """Consecutive texts of a collection: all of them, or a block.

    Attributes:
        vectors: *Shape:* ``(vectors, dimensions)``.
        lengths: Lengths of the vectors. *Shape:* ``(vectors,)``.
        starts: Row of each text's first vector; None if each text has one.
        first: Position of the first text.
        directions: Orthonormal columns, along which vectors are longest; None if bounds are not used.
            *Shape:* ``(dimensions, fewer)``.
    """

    vectors: Vectors
    lengths: Float64Array
    starts: Int64Array | None
    first: int = 0
    directions: Vectors | None = None

    def __len__(self) -> int:
        return len(self.vectors) if self.starts is None else len(self.starts)

    def blocks(self, size: int) -> Iterator[_Texts]:
        for first in range(0, len(self), size):
            rows, starts = slice(first, first + size), None
            if self.starts is not None:
                starts = self.starts[rows]
                end = self.starts[rows.stop] if rows.stop < len(self) else len(self.vectors)
                rows, starts = slice(starts[0], end), starts - starts[0]
            yield _Texts(self.vectors[rows], self.lengths[rows], starts, first, self.directions)

    @cached_property
    def unit(self) -> Vectors:
        """Vectors divided by their lengths, in float32. *Shape:* as `vectors`."""
        return (self.vectors / self.lengths[:, None].astype(np.float32)).astype(np.float32, copy=False)

    @cached_property
    def bounding(self) -> Vectors | None:
        """Short vectors whose products are upper bounds of the cosines. *Shape:* ``(vectors, fewer dimensions)``."""
        if self.directions is None:
            return None
        along = self.unit @ self.directions  # (vectors, fewer)
        squared = np.einsum("vd,vd->v", along, along, dtype=np.float64)  # (vectors,)
        rest = np.sqrt(np.maximum(1 - squared, 0) + _LENGTH_SLACK)
        return np.column_stack([along, rest.astype(np.float32)])

    def cosines_with(self, other: _Texts) -> Vectors:
        """Compute cosines of all texts with all others, in float32. *Shape:* ``(texts, other texts)``."""
        return self._of_texts(self.unit @ other.unit.T, other)

    def bounds_with(self, other: _Texts) -> Vectors | None:
        """Compute upper bounds of these cosines; None if bounds are not used."""
        if self.bounding is None or other.bounding is None:
            return None
        return self._of_texts(self.bounding @ other.bounding.T, other)

    def exact_cosines_with(self, other: _Texts) -> Float64Array:
        """Compute cosines of all texts with all others, in float64. *Shape:* ``(texts, other texts)``."""
        products = self.vectors.astype(np.float64) @ other.vectors.astype(np.float64).T
        return self._of_texts(products / (self.lengths[:, None] * other.lengths), other)

    def rows_of(self, texts: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first row and the number of vectors of some texts. *Shape:* ``(texts,)`` each."""
        if self.starts is None:
            return texts, np.ones(len(texts), np.int64)
        ends = np.append(self.starts[1:], len(self.vectors))
        return self.starts[texts], (ends - self.starts)[texts]

    def _of_texts(self, products: NDArray[Any], other: _Texts) -> NDArray[Any]:
        """Reduce products of vectors to those of texts: the greatest counts if texts have several vectors."""
        if self.starts is not None:
            products = np.maximum.reduceat(products, self.starts, axis=0)
        if other.starts is not None:
            products = np.maximum.reduceat(products, other.starts, axis=1)
        return products


def _collection(vectors: Vectors, starts: Int64Array | None) -> _Texts:
    """Prepare all texts of a collection.

    Raises:
        UsageError: a vector is zero or not finite, or `starts` do not ascend.
    """
    vectors = np.asarray(vectors)
    return _Texts(vectors, vector_lengths(vectors), check_starts(starts, len(vectors)))


def _with_bounds(texts: _Texts) -> _Texts:
    """Prepare a collection to compare bounds first if that saves work."""
    dimensions = texts.vectors.shape[1]
    if len(texts) < _BOUNDED_TEXTS or dimensions < _BOUNDED_DIMENSIONS:
        return texts
    step = max(1, len(texts.vectors) // _SAMPLE)
    sample = (texts.vectors[::step] / texts.lengths[::step, None]).astype(np.float32)
    # The directions along which vectors are longest come last.
    _, directions = np.linalg.eigh(sample.T @ sample)
    return replace(texts, directions=np.ascontiguousarray(directions[:, -(dimensions // 4) :], np.float32))


def _pairs_of_blocks(rows: _Texts, columns: _Texts, threshold: float, *, k: int | None = None) -> PairArrays:
    """Find the pairs of two blocks that reach a threshold: positions and cosines, by first and second position.

    If a block is compared with itself, the first text of a pair comes before the second.

    Args:
        rows, columns: The blocks.
        threshold: The minimum cosine.
        k: Pairs that cannot be among the k best of these blocks may be left out; None keeps all pairs.
    """
    found = _pairs_within_bounds(rows, columns, threshold - _SLACK)
    if found is None:
        products = rows.cosines_with(columns)
        found = _positions_above(products, threshold - _SLACK)
        if k is not None and len(found[0]) > max(k, _MAX_SINGLE_PAIRS):
            near = products[_in_order(rows, columns, found)]
            if len(near) > k:
                # The k best pairs by float32 reach `least` in float64, and so does the k-th best by float64.
                least = np.partition(near, len(near) - k)[len(near) - k] - _SLACK
                found = _positions_above(products, max(threshold, least) - _SLACK)
    first, second = _in_order(rows, columns, found)
    cosines = round_cosines(_exact_cosines(rows, columns, first, second))
    right = cosines >= threshold
    return first[right] + rows.first, second[right] + columns.first, cosines[right]


def _in_order(rows: _Texts, columns: _Texts, pairs: tuple[Int64Array, Int64Array]) -> tuple[Int64Array, Int64Array]:
    """List the pairs of two blocks. If a block is compared with itself, only pairs in ascending order."""
    if rows is not columns:
        return pairs
    first, second = pairs
    above = second > first
    return first[above], second[above]


def _pairs_within_bounds(rows: _Texts, columns: _Texts, threshold: float) -> tuple[Int64Array, Int64Array] | None:
    """Find the pairs whose bounds reach a threshold; None if there are too many, or bounds are not used."""
    bounds = rows.bounds_with(columns) if threshold >= _BOUNDED_COSINE - _SLACK else None
    if bounds is None:
        return None
    found = _positions_above(bounds, threshold)
    return found if len(found[0]) <= _MAX_SINGLE_PAIRS else None


def _exact_cosines(rows: _Texts, columns: _Texts, first: Int64Array, second: Int64Array) -> Float64Array:
    """Compute cosines of some pairs of texts, in float64. *Shape:* ``(pairs,)``."""
    (_, row_counts), (_, column_counts) = rows.rows_of(first), columns.rows_of(second)
    if (row_counts * column_counts).sum() > _MAX_SINGLE_PAIRS:
        return rows.exact_cosines_with(columns)[first, second]
    return _cosines_one_by_one(rows, columns, first, second)


def _cosines_one_by_one(rows: _Texts, columns: _Texts, first: Int64Array, second: Int64Array) -> Float64Array:
    """Compute cosines of some pairs, like `_exact_cosines`, but without computing those of other pairs."""
    (row, row_counts), (column, column_counts) = rows.rows_of(first), columns.rows_of(second)
    sizes = row_counts * column_counts  # (pairs,): pairs of vectors of each
    if not len(sizes):
        return np.empty(0)
    begins = np.cumsum(sizes) - sizes
    number = np.arange(sizes.sum()) - np.repeat(begins, sizes)  # index of a pair of vectors among those of its texts
    widths = np.repeat(column_counts, sizes)
    one = np.repeat(row, sizes) + number // widths
    two = np.repeat(column, sizes) + number % widths
    dots: Float64Array = np.einsum("pd,pd->p", rows.vectors[one], columns.vectors[two], dtype=np.float64)
    greatest: Float64Array = np.maximum.reduceat(dots / (rows.lengths[one] * columns.lengths[two]), begins)
    return greatest


def _positions_above(products: Vectors, threshold: float) -> tuple[Int64Array, Int64Array]:
    """Find rows and columns of the values that are not below a threshold."""
    # Search a flat array: it is ten times as fast as searching two dimensions.
    flat = np.flatnonzero(products >= threshold)
    return np.divmod(flat, products.shape[1])


def round_cosines(cosines: Float64Array) -> Float64Array:
    """Clip cosines to [-1, 1], and round them to `DECIMALS` decimals."""
    # Adding 0 turns -0.0 into 0.0.
    rounded: Float64Array = cosines.clip(-1, 1).round(DECIMALS) + 0.0
    return rounded


def _best_pairs(blocks: Iterable[tuple[_Texts, _Texts]], k: int, min_cosine: float) -> list[SimilarPair]:
    """Find the k best pairs of all blocks."""
    # Drop pairs below the threshold. Once k pairs are known, the threshold rises to the k-th best cosine.
    threshold = min_cosine
    first, second, cosines = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    for rows, columns in blocks:
        new_first, new_second, new_cosines = _pairs_of_blocks(rows, columns, threshold, k=k)
        if not len(new_first):
            continue
        chosen = _top_k(new_cosines, k)
        first = np.concatenate([first, new_first[chosen]])
        second = np.concatenate([second, new_second[chosen]])
        cosines = np.concatenate([cosines, new_cosines[chosen]])
        order = np.lexsort((second, first, -cosines))[:k]
        first, second, cosines = first[order], second[order], cosines[order]
        if len(order) == k:
            threshold = float(cosines[-1])
    return [SimilarPair(*pair) for pair in zip(first.tolist(), second.tolist(), cosines.tolist(), strict=True)]


def _top_k(cosines: Float64Array, k: int) -> Int64Array:
    """Find the positions of the k greatest cosines, ascending; of equal ones, the first are preferred."""
    if len(cosines) <= k:
        return np.arange(len(cosines))
    kth = np.partition(cosines, len(cosines) - k)[len(cosines) - k]
    above = np.flatnonzero(cosines > kth)
    equal = np.flatnonzero(cosines == kth)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))
