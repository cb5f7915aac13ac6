"""transformers' Trainer for training tasks: mixed data sets, dev scores, checkpoints, resume, CSV log, progress."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from accelerate.utils import send_to_device
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from es_sbert.evaluation.evaluated_models import SentenceEmbedder
from es_sbert.evaluation.pair_metrics import (
    Similarity,
    correlate,
    duplicates,
    paired_similarity,
    triplet_accuracy,
    unit_rows,
)
from es_sbert.runtime.siamese_encoder import eval_mode
from es_sbert.training.batch_sampler import BatchItem, MixedBatchSampler, MixedDataset
from es_sbert.training.bi_encoder_task import BiEncoderTask
from es_sbert.training.losses import check_dimensions
from es_sbert.training.recipe import ObjectiveSpec, StageSpec, TripletSpec
from es_sbert.training.run_folder import mark_checkpoint_complete
from es_sbert.training.training_errors import (
    LossCheck,
    check_model_finite,
    translate_disk_errors,
    translate_out_of_memory,
)
from es_sbert.training.training_examples import DevData, StageData

METRIC_NAMES = {
    "sts": "Spearman's ρ × 100",
    "triplet": "accuracy × 100",
    "pairs": "mean reciprocal rank × 100",
    "duplicates": "average precision × 100",
    "vectors": "cosine to the teacher × 100",
}

# Number of queries whose documents are ranked at once: (block, documents) cosines are in memory.
_QUERY_BLOCK = 1024


def dev_score(model: SentenceEmbedder, data: DevData, distance: Similarity = Similarity.COSINE) -> float:
    """Score of a model on dev data, × 100.

    Args:
        model: The model.
        data: The dev data.
        distance: Distance of triplets.

    Raises:
        ModelError: the model returned NaN or infinite values.
    """
    kinds = data.kinds or (None,) * len(data.texts)
    if data.task == "pairs":
        distinct = [list(dict.fromkeys(texts)) for texts in data.texts]
        rows = {text: row for row, text in enumerate(distinct[1])}
        relevant: dict[str, set[int]] = {anchor: set() for anchor in distinct[0]}
        for anchor, positive in zip(*data.texts, strict=True):
            relevant[anchor].add(rows[positive])
        queries, documents = (model.embed(texts, kind) for texts, kind in zip(distinct, kinds, strict=True))
        return mean_reciprocal_rank(queries, documents, list(relevant.values()))
    vectors = [model.embed(texts, kind) for texts, kind in zip(data.texts, kinds, strict=True)]
    if data.task == "triplet":
        return triplet_accuracy(*vectors)[distance]
    if data.task == "vectors":
        assert data.gold is not None, "the teacher has embedded the texts"
        check_dimensions(vectors[0].shape[1], data.gold.shape[1])
        gold = data.gold.astype(np.float32, copy=False)
        return 100 * float(paired_similarity(Similarity.COSINE, vectors[0], gold).mean())
    scores = paired_similarity(Similarity.COSINE, *vectors)
    assert data.gold is not None, "read_dev gives labels for these tasks"
    if data.task == "sts":
        return correlate(scores, data.gold.astype(np.float64)).spearman
    return duplicates(scores, data.gold.astype(np.int64)).average_precision


def mean_reciprocal_rank(
    queries: NDArray[np.float32], documents: NDArray[np.float32], relevant: Sequence[Collection[int]]
) -> float:
    """Compute the mean over queries of 1 / rank × 100, of the first relevant document by cosine.

    A tie counts against the model: a relevant document ranks after all others that are equally close.

    Args:
        queries, documents: Vectors of distinct texts. *Shape:* ``(queries, dimensions)``, ``(documents, dimensions)``.
        relevant: For each query, the rows of the documents that are relevant to it, at least one.
    """
    first, second = unit_rows(queries.astype(np.float64)), unit_rows(documents.astype(np.float64))
    total = 0.0
    for start in range(0, len(first), _QUERY_BLOCK):
        cosines = first[start : start + _QUERY_BLOCK] @ second.T  # (block, documents)
        for own, rows in zip(cosines, relevant[start : start + _QUERY_BLOCK], strict=True):
            of_relevant = own[list(rows)]  # (relevant documents,)
            best = of_relevant.max()
            total += 1 / (1 + np.count_nonzero(own >= best) - np.count_nonzero(of_relevant >= best))
    return 100 * total / len(first)


def triplet_distance(objectives: Iterable[ObjectiveSpec]) -> Similarity:
    """Distance for a stage's dev triplets: the distance of its triplet objectives if they share one, else cosine."""
    distances = {objective.distance for objective in objectives if isinstance(objective, TripletSpec)}
    if len(distances) != 1:
        return Similarity.COSINE
    return Similarity(distances.pop())  # the same names


# Examples whose loss is computed before a model is evaluated or saved.
_PROBE_EXAMPLES = 8

# The last checkpoint and, with a dev set, the best one.
_KEPT_CHECKPOINTS = 2


class TaskTrainer(Trainer):
    """Trains a task on mixed data sets.

    Args:
        task: The network with its objectives.
        data: Training and dev data.
        sampler: The batches of each epoch.
        stage: The stage, for messages.
        arguments: Arguments of transformers' Trainer.
        callbacks: Callbacks.
    """

    control: TrainerControl

    def __init__(
        self,
        task: BiEncoderTask,
        data: StageData,
        sampler: MixedBatchSampler,
        stage: StageSpec,
        arguments: TrainingArguments,
        callbacks: Sequence[TrainerCallback],
    ) -> None:
        self._task = task
        self._data = data
        self._sampler = sampler
        self._stage = stage
        super().__init__(
            model=task,
            args=arguments,
            train_dataset=MixedDataset(sampler.examples),
            eval_dataset=None if data.dev is None else MixedDataset(0),  # `evaluate` does not read it
            data_collator=self._collate,
            callbacks=list(callbacks),
        )
        # A batch's loss is its mean: accumulated gradients are averaged, not summed.
        self.loss_is_scaled_for_ga = False
        self.remove_callback(PrinterCallback)
        self._losses = LossCheck(self.args.device)
        self._checkpoints = CheckpointCallback(self._losses)
        self.add_callback(self._checkpoints)

    def _collate(self, items: list[BatchItem]) -> dict[str, Any]:
        number, rows = items[0].dataset, [item.row for item in items]
        batch = self._task.collate(self._data.examples[number], rows)
        # An array of rows: a list would be moved to the device number by number.
        return {"number": number, "rows": np.array(rows), "batch": batch}

    def get_train_dataloader(self) -> DataLoader[Any]:
        # Not prepared by accelerate, which would skip or split batches of unequal sizes.
        return _EpochLoader(
            cast(Dataset[Any], self.train_dataset),
            batch_sampler=self._sampler,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def _to_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Move a batch to the device without blocking: the loader has pinned its memory."""
        moved: dict[str, Any] = send_to_device(batch, self.args.device, non_blocking=self.args.dataloader_pin_memory)
        return moved

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        examples = self._data.examples[inputs["number"]]
        loss: Tensor = model(examples.name, inputs["batch"])
        self._losses.add(loss, self.state.global_step + 1, examples, inputs["rows"])
        return loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        with translate_out_of_memory(self._stage.batch, self._stage.mini_batch):
            # The Trainer would move the batch too, but wait for it.
            return super().training_step(model, self._to_device(inputs), num_items_in_batch)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            output = super().train(*args, **kwargs)
        except Exception:
            if not self._checkpoints.saving:
                raise
            with translate_disk_errors(Path(cast(str, self.args.output_dir))):
                raise
        self._losses.finish()
        return output

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        # Set by `StageSchedule` if the checkpoint is that of the last step: an epoch without batches ends at once.
        if self.control.should_training_stop:
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Compute the dev score as `eval_dev`."""
        assert self._data.dev is not None, "only a stage with dev data is measured"
        self._check_still_finite()
        distance = triplet_distance(self._data.objectives)
        metrics = {"eval_dev": dev_score(self._task.encoder, self._data.dev, distance)}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _check_still_finite(self) -> None:
        examples = self._data.examples[0]
        with eval_mode(self._task):
            probe = self._task.collate(examples, range(min(_PROBE_EXAMPLES, len(examples))))
            loss = self._task(examples.name, self._to_device(dict(probe)))
        check_model_finite(loss, self.state.global_step)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Write the weights: the first step of a checkpoint. `on_save` of `CheckpointCallback` follows the last one."""
        self._check_still_finite()
        self._checkpoints.saving = True
        super().save_model(*args, **kwargs)


class CheckpointCallback(TrainerCallback):
    """Checks losses before a log, an evaluation or a checkpoint; marks checkpoints complete and removes old ones.

    It must be the last callback, because the earlier ones decide whether to log, evaluate or save after a step.

    Args:
        losses: Checks the losses of the run.

    Attributes:
        saving: Whether a checkpoint is being written.
    """

    def __init__(self, losses: LossCheck) -> None:
        self._losses = losses
        self.saving = False

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if control.should_log or control.should_evaluate or control.should_save:
            self._losses.finish()

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        mark_checkpoint_complete(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        # Remove older checkpoints only now that this one is complete.
        best = state.best_model_checkpoint
        rotate_checkpoints(args.output_dir, save_total_limit=_KEPT_CHECKPOINTS, best_model_checkpoint=best)
        self.saving = False


class _EpochLoader(DataLoader[Any]):
    """A loader that passes the epoch on to its batch sampler."""

    def set_epoch(self, epoch: int) -> None:
        cast(MixedBatchSampler, self.batch_sampler).set_epoch(epoch)


def checkpoint_steps(steps_per_epoch: int, per_epoch: int) -> frozenset[int]:
    """Steps of an epoch, from 1, after which the model is evaluated and saved: evenly spread, including the last."""
    return frozenset(math.ceil(steps_per_epoch * part / per_epoch) for part in range(1, per_epoch + 1))


class StageSchedule(TrainerCallback):
    """Has a stage evaluated and saved at the steps of `checkpoint_steps`; transformers does so after the last step too.

    A resumed run ends at the same step as an uninterrupted one: transformers' loop would take one step more if the last
    checkpoint is that of the last step, in the middle of an epoch.

    Args:
        stage: The stage.
        steps_per_epoch: Optimizer steps of one epoch.
    """

    def __init__(self, stage: StageSpec, steps_per_epoch: int) -> None:
        self._is_measured = stage.dev is not None
        self._steps_per_epoch = steps_per_epoch
        self._steps = checkpoint_steps(steps_per_epoch, stage.checkpoints_per_epoch)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= state.max_steps

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if (state.global_step - 1) % self._steps_per_epoch + 1 in self._steps:
            control.should_save, control.should_evaluate = True, self._is_measured


# Column of the log → name in transformers' log, of the values that a step may have.
_VALUES = {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm", "dev": "eval_dev"}
_COLUMNS = ("step", "epoch", *_VALUES)

MetricsRow = Mapping[str, float]


def metrics_history(log_history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Convert transformers' log to rows of `_COLUMNS`, one for each step; a row has only the values of its step."""
    rows: dict[int, dict[str, float]] = {}
    for entry in log_history:
        if "loss" not in entry and "eval_dev" not in entry:
            continue  # the summary at the end of a run
        row = rows.setdefault(int(entry["step"]), {"step": int(entry["step"]), "epoch": round(entry["epoch"], 4)})
        row |= {column: float(entry[name]) for column, name in _VALUES.items() if name in entry}
    return [rows[step] for step in sorted(rows)]


def metrics_csv(rows: Sequence[MetricsRow]) -> str:
    """Format rows as CSV with a header; missing values are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class MetricsLogCallback(TrainerCallback):
    """Writes the log next to the checkpoints; after a resume, it continues the checkpoint's log.

    Args:
        path: The CSV file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        with translate_disk_errors(self._path.parent):
            self._path.write_text(metrics_csv(metrics_history(state.log_history)), encoding="utf-8")


class ProgressBarCallback(TrainerCallback):
    """Shows a progress bar if stderr is a terminal; otherwise reports a line for every evaluation.

    Args:
        stage: Name of the stage.
        dev_name: Name of the dev metric; None without a dev set.
        report: Called with a line for every evaluation.
        console: Console for the bar; stderr by default.
    """

    def __init__(
        self, stage: str, dev_name: str | None, report: Callable[[str], None], console: Console | None = None
    ) -> None:
        self._stage = stage
        self._dev_name = dev_name
        self._report = report
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar.add_task(self._stage, total=state.max_steps, completed=state.global_step, loss="–")
        self._bar.start()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=state.global_step)

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        logs = logs or {}
        if self._bar and "loss" in logs:
            self._bar.update(self._bar.task_ids[0], loss=f"{logs['loss']:.4f}")
        if "eval_dev" in logs:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            loss = f", loss {losses[-1]:.4f}" if losses else ""
            self._report(
                f"{self._stage}: step {state.global_step} of {state.max_steps}{loss}, "
                f"{self._dev_name} {logs['eval_dev']:.2f}"
            )

    def stop(self) -> None:
        """Restore the terminal."""
        if self._bar:
            self._bar.stop()
            self._bar = None
