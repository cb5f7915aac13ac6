"""Fine-tune, distill and adapt sentence encoders with PyTorch (extra `train`): from a recipe to a checked ONNX bundle.

`train_model`, `distill_model` and `adapt_model` are the entry points; they are imported when they are first used.
recipe.py reads a recipe, distillation.py makes one, training_run.py runs it, training_stage.py trains one stage,
trainer.py extends transformers' Trainer, and bi_encoder_task.py computes the loss of a batch. adapt.py makes pairs of
an index's documents, trains on them, and compares the models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from es_sbert.errors import require_extra
from es_sbert.lazy_names import lazy_names

if TYPE_CHECKING:
    from es_sbert.training.adapt import adapt_model
    from es_sbert.training.distillation import distill_model
    from es_sbert.training.training_run import train_model

__all__ = ["adapt_model", "distill_model", "train_model"]

_get_name, __dir__ = lazy_names(
    __name__,
    {
        "es_sbert.training.adapt": ("adapt_model",),
        "es_sbert.training.distillation": ("distill_model",),
        "es_sbert.training.training_run": ("train_model",),
    },
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        require_training()
    return _get_name(name)


def require_training() -> None:
    """Check that everything that training needs is installed.

    Raises:
        UsageError: the extra `train` is missing.
    """
    require_extra("train", "torch", "transformers", "accelerate", "yaml", "scipy", "sklearn")
