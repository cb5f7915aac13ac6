"""The network of a StaticEmbedding in torch: a table of token vectors instead of a transformer."""

from __future__ import annotations

from typing import Any

import safetensors.torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from es_sbert.bundle.model_files import find_weight_files
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.static_embedding import TABLE
from es_sbert.errors import UnsupportedArchitecture


class TokenTable(nn.Module):
    """A table of token vectors, called like a transformer of transformers.

    Args:
        table: *Shape:* ``(vocabulary, dimensions)``.
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(table, freeze=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        """Look up the vector of each token: (batch, tokens) → `last_hidden_state`, (batch, tokens, dimensions)."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


def load_token_table(model: SentenceModel) -> TokenTable:
    """Load the token vectors of a StaticEmbedding, float32.

    Raises:
        UnsupportedArchitecture: the folder has the format of model2vec, in which tokens share rows.
    """
    tensors = {
        name: tensor
        for file in find_weight_files(model.transformer_folder)
        for name, tensor in safetensors.torch.load_file(file).items()
    }
    if TABLE not in tensors:
        raise UnsupportedArchitecture(
            f"{model.name} has the format of model2vec, which es-sbert does not train",
            "Save it as a StaticEmbedding: SentenceTransformer(modules=[StaticEmbedding.from_model2vec(MODEL)])"
            ".save(FOLDER).",
        )
    return TokenTable(tensors[TABLE].float())
