"""What torch and the disk raise, as errors that say what to do."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from es_sbert.errors import OutputError
from es_sbert.training.training_errors import translate_disk_errors


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: IoError(Os { code: 28 })"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
    ],
)
def test_full_disk_error_says_how_to_resume(error: Exception) -> None:
    with pytest.raises(OutputError, match="out cannot be written") as caught, translate_disk_errors(Path("out")):
        raise error
    assert "`resume`" in caught.value.remedy
