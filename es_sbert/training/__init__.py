"""Fine-tune, distill and adapt sentence encoders with PyTorch (extra `train`): from a recipe to a checked ONNX bundle.

`train_model`, `distill_model` and `adapt_model` are the entry points; they are imported when they are first used.
recipe.py reads a recipe, distillation.py makes one, training_run.py runs it, training_stage.py trains one stage,
trainer.py extends transformers' Trainer, and bi_encoder_task.py computes the loss of a batch. adapt.py makes pairs of
an index's documents, trains on them, and compares the models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from es_sbert.errors import require_extra
from es_sbert.lazy_names import lazy_names

if TYPE_CHECKING:
    from es_sbert.training.adapt import AdaptResult, ModelComparison, adapt_model
    from es_sbert.training.distillation import Distillation, distill_model
    from es_sbert.training.training_run import TrainingResult, train_model

__all__ = [
    "AdaptResult", "Distillation", "ModelComparison", "TrainingResult", "adapt_model", "distill_model", "train_model",
]  # fmt: skip


def require_training() -> None:
    """Check that everything that training needs is installed.

    Raises:
        UsageError: the extra `train` is missing.
    """
    require_extra("train", "torch", "transformers", "accelerate", "yaml", "scipy", "sklearn")


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "es_sbert.training.adapt": "AdaptResult ModelComparison adapt_model",
        "es_sbert.training.distillation": "Distillation distill_model",
        "es_sbert.training.training_run": "TrainingResult train_model",
    },
    require_training,
)
