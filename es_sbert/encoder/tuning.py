"""Find the fastest variant of a model on this machine by measuring, and keep the result in the cache."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pydantic
from numpy.typing import NDArray
from pydantic import BaseModel

from es_sbert.bundle.bundle import EncoderBundle
from es_sbert.bundle.variants import Variant
from es_sbert.config import cache_folder
from es_sbert.errors import EsSbertError, UsageError
from es_sbert.filesystem import file_lock, open_output
from es_sbert.runtime.batching import InputBuilder
from es_sbert.runtime.compiled_model import Session
from es_sbert.runtime.device import Device, thread_counts
from es_sbert.runtime.inference_pool import InferencePool
from es_sbert.runtime.machine import describe_machine
from es_sbert.runtime.runtimes import compile_model
from es_sbert.runtime.tokenizer import SentenceTokenizer

_SECONDS = 2.0  # of measuring, for all settings of all variants together; one round is always measured
_BUDGETS = (1, 0.5, 2)  # multiples of the runtime's tokens per batch, the usual number first
# Speedup that a setting needs to replace an earlier one; below it, the earlier, preferred one wins.
_MARGIN = 1.05
_LOCK_SECONDS = 30.0  # another process needs a few seconds to measure

_LENGTHS = (16, 32, 64)  # tokens of the texts that are measured
_SAMPLE_TEXT = "The shard of an index holds documents, and a query visits all of them. " * 8


class Measurement(BaseModel, frozen=True):
    """The speed of a variant with one number of threads and one size of batches.

    Attributes:
        variant: Name of the variant.
        threads: Number of concurrent batches.
        batch_tokens: Tokens of a batch, with padding.
        texts_per_second: Speed of the fastest round, the one least disturbed by other programs, on texts of 16, 32 and
            64 tokens.
    """

    variant: str
    threads: int
    batch_tokens: int
    texts_per_second: float


class Tuning(BaseModel, frozen=True):
    """The measurements of a model on a machine.

    Attributes:
        machine: Processor, threads and releases for which the figures are valid.
        measured: Each variant with each number of threads and size of batches, in order of preference.
    """

    machine: dict[str, str]
    measured: tuple[Measurement, ...] = ()

    def fastest(self, variants: Sequence[Variant]) -> Measurement | None:
        """Return the fastest setting of some variants; None unless all of these variants were measured.

        Args:
            variants: In order of preference.
        """
        settings = [[candidate for candidate in self.measured if candidate.variant == variant] for variant in variants]
        if not settings or not all(settings):
            return None
        fastest, *others = (candidate for found in settings for candidate in found)
        for candidate in others:
            fastest = candidate if candidate.texts_per_second > _MARGIN * fastest.texts_per_second else fastest
        return fastest


def tuning_path(fingerprint: str) -> Path:
    """The cache file of a model's measurements."""
    return cache_folder() / "tuning" / f"{fingerprint}.json"


def read_tuning(fingerprint: str) -> Tuning:
    """Read the measurements of a model on this machine; empty if they are of a different processor or release."""
    here = describe_machine()
    try:
        tuning = Tuning.model_validate_json(tuning_path(fingerprint).read_bytes())
    except (OSError, pydantic.ValidationError, UsageError):
        return Tuning(machine=here)
    return tuning if tuning.machine == here else Tuning(machine=here)


def fastest_variant(
    bundle: EncoderBundle, variants: Sequence[Variant], report: Callable[[str], None]
) -> Measurement | None:
    """Return the fastest of some variants on this CPU; they are measured if the cache has no result.

    If another process is measuring the same model, this one waits for its result.

    Args:
        bundle: The model.
        variants: Variants of the bundle, in order of preference.
        report: Called before and after measuring, and if the result cannot be kept.

    Returns:
        The setting to run; None if it is unknown and cannot be measured: the first variant is usually the fastest.
    """
    stored = read_tuning(bundle.manifest.fingerprint).fastest(variants)
    if stored is not None:
        return stored
    try:
        return tune(bundle, variants, report).fastest(variants)
    except TimeoutError:
        report(f"Another process is measuring the same model: {variants[0]} runs, which is usually the fastest")
    except (OSError, UsageError) as error:
        report(
            f"The fastest variant cannot be measured and stored ({error}): {variants[0]} runs, "
            "which is usually the fastest"
        )
    return None


def tune(
    bundle: EncoderBundle, variants: Sequence[Variant], report: Callable[[str], None], *, again: bool = False
) -> Tuning:
    """Measure variants on this CPU and keep the result.

    Args:
        again: Measure even if the cache has a result for these variants.

    Raises:
        TimeoutError: another process has been measuring the same model for too long.
        OSError: the cache cannot be written.
        UsageError: there is no folder for a cache.
    """
    fingerprint = bundle.manifest.fingerprint
    path = tuning_path(fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_suffix(".lock"), lambda: None, timeout=_LOCK_SECONDS):
        stored = read_tuning(fingerprint)
        if not again and stored.fastest(variants) is not None:
            return stored
        report(f"Measuring {', '.join(variants)} on this machine, once")
        begun = time.perf_counter()
        tuning = Tuning(machine=describe_machine(), measured=tuple(measure_variants(bundle, variants)))
        with open_output(path) as file:
            file.write(orjson.dumps(tuning.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
        report(f"Measured in {time.perf_counter() - begun:.1f} s")
        return tuning


def measure_variants(bundle: EncoderBundle, variants: Sequence[Variant]) -> list[Measurement]:
    """Measure the speed of each variant with several numbers of threads and sizes of batches, in turn.

    Variants that do not run here are left out.
    """
    tokens = SentenceTokenizer(bundle.model)([_SAMPLE_TEXT]).ids[0]
    rows = [tokens[:length] for length in _LENGTHS]
    settings: list[_Setting] = []
    with contextlib.ExitStack() as stack:
        for variant in variants:
            graph = bundle.manifest.variants[variant]
            for threads in thread_counts():
                try:
                    model = compile_model(
                        bundle.variant_file(variant), graph.runtime, graph.precision, Device("cpu"), threads=threads
                    )
                    pool = stack.enter_context(contextlib.closing(InferencePool(model)))
                except EsSbertError:
                    break
                for budget in (int(factor * model.batch_tokens) for factor in _BUDGETS):
                    measure = partial(_texts_per_second, pool, rows, budget, bundle.model.dimensions)
                    settings.append(_Setting(variant, threads, budget, measure))
        begun = time.perf_counter()
        for setting in settings[:: len(_BUDGETS)]:
            setting.measure()  # compiles kernels for the shapes of its batches
        if time.perf_counter() - begun > _SECONDS:
            # For a large model, and on a busy machine, only the usual batches are measured. For a large model, other
            # sizes gain little.
            settings = settings[:: len(_BUDGETS)]
        else:
            for setting in settings:
                setting.measure()
        speeds: list[list[float]] = [[] for _ in settings]
        begun = time.perf_counter()
        while settings and (not speeds[-1] or time.perf_counter() - begun < _SECONDS):
            for found, setting in zip(speeds, settings, strict=True):
                found.append(setting.measure())
    return [
        Measurement(
            variant=setting.variant,
            threads=setting.threads,
            batch_tokens=setting.batch_tokens,
            texts_per_second=round(max(found), 1),
        )
        for setting, found in zip(settings, speeds, strict=True)
    ]


class _Setting(NamedTuple):
    """A setting to measure; `measure` returns texts per second."""

    variant: Variant
    threads: int
    batch_tokens: int
    measure: Callable[[], float]


def _texts_per_second(pool: InferencePool, rows: Sequence[NDArray[np.int64]], budget: int, dimensions: int) -> float:
    """Measure the speed on full batches, one for each length of texts and each thread."""
    with pool.session() as session:
        inputs = InputBuilder(session.input_names, session.properties)
    batches = [[row] * max(1, budget // len(row)) for row in rows for _ in range(pool.count)]

    def run(session: Session, batch: list[NDArray[np.int64]]) -> None:
        session.run(inputs(batch), np.empty((len(batch), dimensions), dtype=np.float32))

    begun = time.perf_counter()
    pool.run(batches, run)
    return sum(map(len, batches)) / (time.perf_counter() - begun)
