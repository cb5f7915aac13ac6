"""torch.compile for the transformer of a task, where a recipe asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from es_sbert.errors import TrainingError, first_line


def compile_transformer(encoder: nn.Module, backend: str = "inductor") -> None:
    """Have an encoder's transformer compiled by its first step, for batches of any size and length.

    It is compiled in place: its class and the names of its weights stay as they are, so that checkpoints and saved
    models do not differ. Pooling and objective, which take little time, run as before.

    Args:
        encoder: A network with a `transformer`.
        backend: One of `torch.compiler.list_backends(())`.
    """
    transformer: Any = encoder.transformer
    # Lengths differ from batch to batch: fixed ones would be compiled over and over.
    transformer.compile(dynamic=True, backend=backend)


def uncompiled(*, compiled: bool) -> AbstractContextManager[Any]:
    """Run compiled networks as they were written inside the block.

    Measurements need no gradients, which would be another graph to compile.

    Args:
        compiled: Whether there are any.
    """
    # Without any, torch's compiler need not even be imported.
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def compiler_errors_explained(*, compiled: bool) -> Iterator[None]:
    """Turn a failed compilation into advice.

    Args:
        compiled: Whether anything is compiled inside the block.

    Raises:
        TrainingError: there is no compiler, or it does not take the network.
    """
    if not compiled:
        yield
        return
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        cause = getattr(error, "inner_exception", error)  # of the compiler behind torch.compile
        raise TrainingError(
            f"torch.compile cannot compile the network here: {first_line(cause)}",
            "Install a C++ compiler (g++), which torch calls on GPUs too, or set compile: false and start anew in "
            "another folder.",
        ) from error
