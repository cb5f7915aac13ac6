"""Boundaries between the buckets of a facet: quantiles, moved to numbers and dates that are easy to read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

# How far a boundary may move, as a share of the distance to the next one.
_MOVES = 1 / 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS = (1000, 500, 200, 100, 50, 20, 10, 5, 2, 1)
_MONTHS = (6, 3, 1)
_MINUTES = (1440, 720, 360, 180, 60, 30, 15, 5, 1)
_SPANS = (*(timedelta(minutes=minutes) for minutes in _MINUTES), timedelta(seconds=1))


def number_boundaries(quantiles: Sequence[float], *, whole: bool) -> list[str]:
    """Where the values of a numeric field are cut.

    Args:
        quantiles: Of the field, in equal steps from its least value to its greatest.
        whole: Whether its values are whole numbers.

    Returns:
        Ascending, at most one for each inner quantile, as the engines read numbers. Each is the first value of its
        bucket. Empty if all inner quantiles are the least value.
    """
    bounds = _rounded(quantiles, lambda value, most: _round_number(value, most, whole=whole))
    return [str(int(bound)) if whole else repr(bound).removesuffix(".0") for bound in bounds]


def time_boundaries(quantiles: Sequence[float]) -> list[str]:
    """Where the values of a date field are cut; see `number_boundaries`.

    Args:
        quantiles: In milliseconds since 1970.

    Returns:
        In the format `strict_date_time`, in UTC. Dates outside the years 1 to 9999 are left out.
    """
    return [
        _time(bound).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
        for bound in _rounded(quantiles, _round_time)
    ]


def _rounded(quantiles: Sequence[float], rounded: Callable[[float, float], float | None]) -> list[float]:
    """The inner quantiles above the least value, each moved by `rounded(value, distance it may move)`."""
    finite = [value for value in quantiles if math.isfinite(value)]
    if len(finite) < 3:
        return []
    least = finite[0]
    inner = sorted({value for value in finite[1:-1] if value > least})
    # Only distances to other quantiles that are cut at count: the greatest value may be an outlier.
    gaps = [value - before for before, value in pairwise([least, *inner])]
    bounds: list[float] = []
    for place, value in enumerate(inner):
        bound = rounded(value, min(gaps[place : place + 2]) * _MOVES)
        if bound is not None and bound > max(bounds, default=least):
            bounds.append(bound)
    return bounds


def _round_number(value: float, most: float, *, whole: bool) -> float:
    """The roundest number no further from a value than `most`: a multiple of 1, 2 or 5 times a power of ten."""
    for step in _steps(max(abs(value), most), most):
        if whole and step < 1:
            break
        near = float(f"{round(value / step) * step:.12g}")
        if abs(near - value) <= most:
            return near
    return float(math.ceil(value)) if whole else value


def _steps(greatest: float, most: float) -> Iterator[float]:
    """Round steps, from above the greatest value down to one that certainly meets a distance of `most`."""
    if most < 1e-300:
        return
    for power in range(min(308, math.floor(math.log10(greatest)) + 1), math.floor(math.log10(most)) - 1, -1):
        for factor in (5, 2, 1):
            step = factor * 10.0**power
            if math.isfinite(step):
                yield step


def _round_time(value: float, most: float) -> float | None:
    """The roundest time no further from a value than `most`, both in milliseconds; None outside the calendar."""
    try:
        time = _time(value)
    except OverflowError:
        return None
    for around in _round_times(time):
        milliseconds = [(near - _EPOCH) / timedelta(milliseconds=1) for near in around]
        nearest = min(milliseconds, key=lambda each: abs(each - value))
        if abs(nearest - value) <= most:
            return nearest
    return float(math.ceil(value))


def _round_times(time: datetime) -> Iterator[list[datetime]]:
    """The beginnings of years, months, days and so on before and after a time, the roundest first."""
    for years in _YEARS:
        begin = time.year - time.year % years
        if around := [datetime(year, 1, 1, tzinfo=UTC) for year in (begin, begin + years) if 1 <= year <= 9999]:
            yield around
    for months in _MONTHS:
        begin = time.year * 12 + (time.month - 1) // months * months
        places = [divmod(month, 12) for month in (begin, begin + months)]
        yield [datetime(year, month + 1, 1, tzinfo=UTC) for year, month in places if year <= 9999]
    midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
    for span in _SPANS:
        begin_of_span = midnight + (time - midnight) // span * span
        yield [begin_of_span, *([begin_of_span + span] if time.year < 9999 else [])]


def _time(milliseconds: float) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)
