"""Table 7: sentences a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.baselines.open_baseline import open_baseline, open_network
from benchmarks.common import read_tsv, spread, table
from benchmarks.tables import models, paper
from benchmarks.tables.lab import Lab, cells
from es_sbert.evaluation.evaluated_models import SentenceEmbedder, close_model, open_model
from es_sbert.runtime.batching import pad

TITLE = "Sentences a second (the paper's table 7)"
NOTE = (
    "The sentences of STSb test on this machine, all models in turn, median (min–max) of 5 rounds. `without sorting`: "
    "batches of 16 in the order of the data, padded to the longest; `smart batching`: sorted by length first. Both run "
    "the same torch network; the last rows are what ingest and search run. The paper's machines: i7-5820K, V100."
)
ROUNDS = 5


def make(lab: Lab) -> str:
    """The table."""
    lines = [[f"*{name}*", str(cpu), str(gpu or "–")] for name, (cpu, gpu) in paper.SPEED.items()]
    column = 1 if lab.profile.device == "cpu" else 2
    for name in _contenders(lab):
        ours = cells(1, lambda name=name: [_measured(lab)[name]])
        lines.append([name, *(ours if column == 1 else ["–"]), *(ours if column == 2 else ["–"])])
    return table(["", "CPU", "GPU"], lines)


def _contenders(lab: Lab) -> dict[str, tuple[Callable[[], Any], bool]]:
    """Label → (opens the model, whether it is to run without sorting)."""
    base, device = lab.profile.base, lab.profile.device
    precisions = ("fp32", "int8") if device == "cpu" else ("fp16",)
    found: dict[str, tuple[Callable[[], Any], bool]] = {
        "word2vec averaged": (lambda: open_baseline(f"word2vec:{models.word_vectors(lab)}"), False),
        f"{base}, torch, without sorting": (lambda: open_network(base, device), True),
        f"{base}, torch, smart batching": (lambda: open_network(base, device), False),
    }
    for precision in precisions:
        found[f"{base}, es-sbert {precision}"] = (
            lambda precision=precision: open_model(base, device=device, precision=precision),
            False,
        )
    return found


def _measured(lab: Lab) -> dict[str, str]:
    return dict(lab.kept("speed", lambda: _measure(lab))["result"])


def _measure(lab: Lab) -> dict[str, str]:
    texts = [row[side] for row in read_tsv(lab.data / "sts/stsb-en-test.tsv.gz") for side in ("sentence1", "sentence2")]
    opened = {name: (open_(), unsorted) for name, (open_, unsorted) in _contenders(lab).items()}
    rates: dict[str, list[float]] = {name: [] for name in opened}
    for model, unsorted in opened.values():
        _embed(model, texts[:256], unsorted)
    for _ in range(ROUNDS):
        for name, (model, unsorted) in opened.items():
            began = time.perf_counter()
            _embed(model, texts, unsorted)
            rates[name].append(len(texts) / (time.perf_counter() - began))
    for model, _ in opened.values():
        close_model(model)
    return {name: spread(values) for name, values in rates.items()}


def _embed(model: SentenceEmbedder, texts: Sequence[str], unsorted: bool) -> None:
    if not unsorted:
        model.embed(texts)
        return
    import torch

    from es_sbert.runtime.siamese_encoder import SiameseEncoder, eval_mode

    assert isinstance(model, SiameseEncoder)
    rows = model.tokenize(texts)
    with eval_mode(model):
        for start in range(0, len(rows), 16):
            ids, mask = (torch.from_numpy(np.asarray(part)) for part in pad(rows[start : start + 16]))
            model(ids.to(model.device), mask.to(model.device)).cpu()
