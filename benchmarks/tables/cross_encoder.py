"""Train the cross-encoders of the paper's tables with sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def train_cross_encoder(
    base: Path,
    pairs: Iterable[tuple[str, str, float]],
    folder: Path,
    *,
    epochs: float,
    learning_rate: float,
    seed: int,
    device: str,
    dev: Iterable[tuple[str, str, float]] = (),
) -> None:
    """Binary cross-entropy against gold scores; the best of two checkpoints an epoch if there is dev data.

    Args:
        base: Folder of the transformer that it starts from; its head is new.
        pairs: First text, second text, gold score from 0 to 1.
        folder: Gets the model.
        epochs, learning_rate, seed: Settings of the training; the batch is 16, the warm-up a tenth of the steps.
        device: `cpu` or `cuda`.
        dev: Pairs that choose the checkpoint.
    """
    import transformers
    from datasets import Dataset
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.evaluation import CrossEncoderCorrelationEvaluator
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    transformers.set_seed(seed)
    rows, held_out = list(pairs), list(dev)
    network = CrossEncoder(str(base), num_labels=1, max_length=128, device=device, local_files_only=True)
    steps = max(1, -(-len(rows) // 16) // 2)
    chosen = {"eval_strategy": "steps", "eval_steps": steps, "load_best_model_at_end": True,
              "metric_for_best_model": "eval_dev_spearman"}  # fmt: skip
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        learning_rate=learning_rate,
        warmup_ratio=0.1,
        seed=seed,
        save_strategy="steps" if held_out else "no",
        save_steps=steps,
        save_total_limit=1,
        report_to="none",
        use_cpu=device == "cpu",
        **(chosen if held_out else {}),
    )
    first, second, scores = zip(*rows, strict=True)
    evaluator = None
    if held_out:
        left, right, gold = zip(*held_out, strict=True)
        evaluator = CrossEncoderCorrelationEvaluator(list(zip(left, right, strict=True)), list(gold), name="dev")
    CrossEncoderTrainer(
        model=network,
        args=arguments,
        train_dataset=Dataset.from_dict({"sentence1": first, "sentence2": second, "label": scores}),
        loss=BinaryCrossEntropyLoss(network),
        evaluator=evaluator,
    ).train()
    network.save_pretrained(str(folder))
