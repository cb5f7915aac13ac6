"""Read and write a StaticEmbedding: a table of token vectors, whose mean is the vector of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_sbert.bundle.fingerprint import hash_tensors
from es_sbert.bundle.model_files import COPY_AGAIN, find_weight_files, read_header, read_json
from es_sbert.bundle.modules import Feature, InputModule, Pooling
from es_sbert.bundle.transformer_module import check_truncation
from es_sbert.errors import BundleInvalid

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Name of the table in the weights that sentence-transformers writes.
TABLE = "embedding.weight"
# Maximum length of a text for a StaticEmbedding that does not truncate.
NO_LIMIT_OF_TOKENS = 1_000_000


def read_static_embedding(folder: Path, place: str) -> InputModule:
    """Read the StaticEmbedding in a folder of a model folder, including model2vec's format.

    Raises:
        BundleInvalid: a file is missing or broken, or there is no table of token vectors.
        UnsupportedArchitecture: texts are truncated at their beginning.
    """
    path = folder / place
    tokenizer = read_json(path / "tokenizer.json")
    files = find_weight_files(path)
    shapes = {key: entry["shape"] for file in files for key, entry in read_header(file).items()}
    table = shapes.get(TABLE) or shapes.get("embeddings")
    if table is None or len(table) != 2:
        raise BundleInvalid(f"the weights in {path} have no table of token vectors (embedding.weight)", COPY_AGAIN)
    check_truncation(path, {}, tokenizer)
    return InputModule(
        settings={
            "architecture": "static",
            # model2vec may map several tokens to one row.
            "transformer_config": {"vocab_size": shapes.get("mapping", table)[0]},
            # The library truncates only by the tokenizer's own setting.
            "max_tokens": int((tokenizer.get("truncation") or {}).get("max_length") or NO_LIMIT_OF_TOKENS),
            "adds_special_tokens": False,
        },
        output=Feature(table[1], pooling=(Pooling.MEAN,)),
        weights_hash=hash_tensors(files),
        fingerprint_fields=("architecture", "adds_special_tokens"),
    )


def write_static_embedding(place: Path, table: NDArray[np.floating[Any]], tokenizer: str) -> None:
    """Write the files of a StaticEmbedding to an existing folder.

    Args:
        place: Folder of the module.
        table: *Shape:* ``(vocabulary, dimensions)``.
        tokenizer: Content of its tokenizer.json, which includes the truncation.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    # Imported here, because this module is imported with every command.
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file({TABLE: np.ascontiguousarray(table, dtype=np.float32)}, place / "model.safetensors")
    except SafetensorError as error:  # not an OSError, even for disk errors
        raise OSError(f"{place}: {error}") from error
    (place / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
