"""What torch and the disk raise, as errors that say what to do."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from es_sbert.errors import OutOfMemory, OutputError, TrainingDiverged
from es_sbert.training.training_errors import check_model_finite, translate_disk_errors, translate_out_of_memory
from tests.raised import raises_as_recorded


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: IoError(Os { code: 28 })"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
    ],
)
def test_full_disk_error_says_how_to_resume(error: Exception) -> None:
    with raises_as_recorded(OutputError), translate_disk_errors(Path("out")):
        raise error


def test_model_that_returns_nan_ends_the_run_with_its_step() -> None:
    with raises_as_recorded(TrainingDiverged):
        check_model_finite(torch.tensor(float("nan")), 3)


def test_memory_of_a_gpu_names_the_mini_batch_and_other_errors_pass() -> None:
    with raises_as_recorded(OutOfMemory), translate_out_of_memory(64, 8):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    for translated in (translate_out_of_memory(64, None), translate_disk_errors(Path("out"))):
        with pytest.raises(RuntimeError, match="^shapes differ$"), translated:
            raise RuntimeError("shapes differ")
