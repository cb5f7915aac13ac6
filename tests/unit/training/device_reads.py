"""What a training step reads back from the device, told on a CPU: every such read makes the host wait for a GPU."""

from __future__ import annotations

import traceback
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Operators whose result the host needs before it can go on: values, or shapes that depend on values. `lift_fresh` is
# what becomes of `torch.tensor([1, 2], device=…)`: a copy from memory that is not page-locked.
_READS = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "lift_fresh", "_unique", "_unique2",
    "unique_dim", "unique_consecutive", "repeat_interleave", "bincount",
}  # fmt: skip
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}


# Copies that a CPU makes without an operator. `numpy` is none of them: a tensor on a GPU does not have it.
_COPIES = (torch.Tensor.tolist, torch.Tensor.cpu)


class DeviceReads:
    """Notes where values of tensors are read while it is active.

    Attributes:
        found: One entry a read: the operator and the lines that led to it.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._modes = _Operators(self.found), _Methods(self.found)

    def __enter__(self) -> Self:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Operators(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _READS or (name in _INDEXING and _by_mask(args[1])):
            self._found.append(_place(name))
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _COPIES:
            self._found.append(_place(func.__name__))
        return func(*args, **(kwargs or {}))


def _place(name: str) -> str:
    lines = [f"{line.filename}:{line.lineno}" for line in traceback.extract_stack() if not _torch(line.filename)]
    return f"{name}: {' > '.join(lines[-4:])}"


def _by_mask(indices: Any) -> bool:
    """Whether an index is a mask: which elements it takes is known to the device alone."""
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _torch(file: str) -> bool:
    return "/torch/" in file or file.startswith("<")


class StepReads(TrainerCallback):
    """Notes what is read within every step of a run: forward, backward, clipping and optimizer."""

    def __init__(self) -> None:
        self.steps = 0
        self.found: list[str] = []
        self._active: DeviceReads | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._leave()  # a step that failed has not ended

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._active = DeviceReads()
        self._active.__enter__()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._leave()
        self.steps += 1

    def _leave(self) -> None:
        if self._active is not None:
            self._active.__exit__(None, None, None)
            self.found += self._active.found
            self._active = None
