"""Compile the network of a training run with torch.compile.

Errors of the compiler are in a private module, `torch._dynamo.exc`; torch has no public name for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from es_sbert.errors import TrainingError, error_summary
from es_sbert.installation import unsupported_version


def compile_transformer(encoder: nn.Module, backend: str = "inductor") -> None:
    """Compile an encoder's transformer at its first step, for batches of any size and length.

    It is compiled in place: its class and the names of its weights do not change, so checkpoints and saved models
    are the same. Pooling and objective take little time and are not compiled.

    Args:
        encoder: A network with a `transformer`.
        backend: One of `torch.compiler.list_backends(())`.
    """
    transformer: Any = encoder.transformer
    # Lengths differ from batch to batch: static shapes would be compiled again and again.
    transformer.compile(dynamic=True, backend=backend)


def eager_mode(*, compiled: bool) -> AbstractContextManager[Any]:
    """Run compiled networks without compilation inside the block.

    Evaluation needs no gradients, which would be another graph to compile.

    Args:
        compiled: Whether a network is compiled.
    """
    # Do not import torch's compiler without need.
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def translate_compiler_errors(*, compiled: bool) -> Iterator[None]:
    """Turn a failed compilation into an error with a remedy.

    Args:
        compiled: Whether anything is compiled inside the block.

    Raises:
        TrainingError: there is no compiler, or the network cannot be compiled.
        UsageError: this version of torch does not define its compiler's errors.
    """
    if not compiled:
        yield
        return
    try:
        from torch._dynamo.exc import TorchDynamoException
    except ImportError as error:
        raise unsupported_version("torch", str(error)) from error

    try:
        yield
    except TorchDynamoException as error:
        cause = getattr(error, "inner_exception", error)  # error of the compiler that torch.compile calls
        raise TrainingError(
            f"torch.compile cannot compile the network here: {error_summary(cause)}",
            "Install a C++ compiler (g++), which torch calls on GPUs too, or set compile: false and start a new "
            "run in another folder.",
        ) from error
