"""What every step is given: models, data, limits, and the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from es_sbert.bundle.bundle import EncoderBundle
    from es_sbert.bundle.variants import Precision

DEFAULT_LIMIT = 540.0  # seconds of a step: it ends within ten minutes


class OutOfTime(Exception):
    """A step's time is up; what it has measured is kept. The message says what to do."""


@dataclass(frozen=True)
class Context:
    """The settings of a run.

    Attributes:
        models: Folders of sentence-transformers models; random weights where there is none.
        data: Folder of data sets, for the steps that can use real ones.
        scratch: Folder for exported models, kept from step to step.
        rounds: Repetitions of a measurement.
        texts: Most texts of a measurement; None for the step's own number.
        cases: Only cases whose name contains one of these; all without any.
        limit: Seconds of a step.
        started: `time.monotonic()` at its beginning.
    """

    models: tuple[Path, ...]
    data: Path | None
    scratch: Path
    rounds: int = 5
    texts: int | None = None
    cases: tuple[str, ...] = ()
    limit: float = DEFAULT_LIMIT
    started: float = field(default_factory=time.monotonic)

    def time_left(self) -> float:
        """Seconds until the step has to end."""
        return self.limit - (time.monotonic() - self.started)

    def check_time(self, needed: float) -> None:
        """Raise `OutOfTime` if fewer seconds are left than the next case needs."""
        left = max(0.0, self.time_left())
        if left < needed:
            raise OutOfTime(
                f"out of time: {int(left)} of the {self.limit:g} s of --limit are left, and a case needs {needed:g}; "
                "raise --limit, or run fewer cases with --case"
            )

    def at_most(self, texts: int) -> int:
        """How many texts to measure on."""
        return min(texts, self.texts or texts)

    def wants(self, case: str) -> bool:
        """Whether a case is to be run."""
        return not self.cases or any(part in case for part in self.cases)

    @cached_property
    def named_models(self) -> dict[str, Path]:
        """Name → folder of the models that were given, or of one with random weights for each shape."""
        if self.models:
            return {folder.resolve().name: folder for folder in self.models}
        from benchmarks.gpu_check.random_models import SHAPES, write_model

        return {name: write_model(self.scratch / name, shape) for name, shape in SHAPES.items()}

    @property
    def first_model(self) -> tuple[str, Path]:
        """The first of them: MiniLM's shape where none was given."""
        return next(iter(self.named_models.items()))

    def bundle(self, folder: Path, precisions: Sequence[Precision] | None = None) -> EncoderBundle:
        """A model's bundle in the scratch folder, exported where it is not there yet.

        Variants below their parity bar are written too: the step `parity` measures them.
        """
        from es_sbert.bundle.bundle import is_encoder_bundle, open_encoder_bundle
        from es_sbert.bundle.sentence_model import read_sentence_model
        from es_sbert.bundle.variants import Precision
        from es_sbert.exporters.export_bundle import export_bundle

        wanted = tuple(precisions or (Precision.FP16,))
        model = read_sentence_model(folder)
        target = self.scratch / f"bundle-{model.name}-{model.fingerprint[:12]}-{'-'.join(wanted)}"
        if not is_encoder_bundle(target):
            export_bundle(model, target, wanted, force=True, on_progress=say)
        return open_encoder_bundle(target)


def say(line: str) -> None:
    """Tell the user what is being done."""
    print(line, file=sys.stderr, flush=True)
