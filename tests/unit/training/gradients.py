"""Run by test_distributed under torchrun: a command, then gradients of one joint batch, as
DistributedDataParallel leaves them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from es_sbert.cli.main import main as es_sbert
from es_sbert.networks.siamese_encoder import open_siamese_encoder
from es_sbert.training.bi_encoder_task import BiEncoderTask
from es_sbert.training.losses import build_objective, objective_schema
from es_sbert.training.training_examples import Examples
from tests.unit.training.objectives.samples import ALL_SPECS, labels_for, settings

OBJECTIVES = {
    name: settings(ALL_SPECS[name])
    for name in ("softmax", "regression", "triplet, euclidean", "in-batch, symmetric", "matryoshka of cosent")
}
# What is trained, and in which mini-batches.
CASES = [(name, size) for name in OBJECTIVES for size in (None, 4)]


def make_examples(name: str) -> Examples:
    """Eleven examples: two processes get six and five."""
    random, schema = np.random.default_rng(1), objective_schema(OBJECTIVES[name])
    words = ["man", "cat", "plays", "sleeps", "guitar", "query", "committee", "the", "on", "mat"]
    texts = tuple([" ".join(random.choice(words, random.integers(2, 9))) for _ in range(11)] for _ in schema.roles)
    labels = labels_for(schema.label, batch=11)
    return Examples(name, Path("made up"), texts, None if labels is None else labels.numpy(), np.arange(1, 12))


def gradients(model: Path, name: str, mini_batch: int | None) -> dict[str, torch.Tensor]:
    """Gradients of the joint batch; each process has its part of it."""
    task = _open(model, name, mini_batch)
    task.train()
    examples = make_examples(name)
    parts = [np.arange(len(examples))]
    together = dist.is_initialized()
    if together:
        parts = np.array_split(parts[0], dist.get_world_size())
    own = parts[dist.get_rank()] if together else parts[0]
    batch = {**task.collate(examples, own.tolist()), "sizes": tuple(map(len, parts))}
    network = DistributedDataParallel(task) if together else task
    network(name, batch).backward()
    return {key: parameter.grad for key, parameter in task.named_parameters() if parameter.grad is not None}


def _open(model: Path, name: str, mini_batch: int | None) -> BiEncoderTask:
    torch.manual_seed(0)
    objective = build_objective(OBJECTIVES[name], 32)
    return BiEncoderTask(open_siamese_encoder(model), {name: objective}, mini_batch=mini_batch)


def main(model: str, output: str, *command: str) -> None:
    """Run a command of es-sbert, by which the processes find each other, and write the gradients of CASES to a file."""
    try:
        es_sbert(list(command))
    except SystemExit as ended:
        if ended.code:
            raise
    assert dist.get_world_size() == 2
    found = {}
    for name, mini_batch in CASES:
        for key, gradient in gradients(Path(model), name, mini_batch).items():
            found[f"{name}/{mini_batch}/{key}"] = gradient
    if dist.get_rank() == 0:
        torch.save(found, output)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread of gloo may still hold a tensor of the last step, also after `destroy_process_group`. If it lets go while
    # the interpreter shuts down, it waits for the interpreter's lock, and the process aborts. So nothing is shut down.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
