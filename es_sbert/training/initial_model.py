"""Open the sentence encoder that a recipe starts from."""

from __future__ import annotations

from pathlib import Path

from es_sbert.bundle.sentence_model import Dense, Pooling, SentenceModel
from es_sbert.networks.siamese_encoder import DenseLayer, SiameseEncoder, open_siamese_encoder
from es_sbert.training.recipe import ModelSpec


def open_initial_model(folder: Path, spec: ModelSpec) -> SiameseEncoder:
    """Open a model folder and change what the recipe changes about it; a new Dense layer takes torch's random numbers.

    Args:
        folder: A sentence-transformers folder, or a bare transformers folder.
        spec: What the recipe says of the model; its `base` is the name for people.

    Raises:
        ModelError: the folder cannot be opened.
    """
    encoder = open_siamese_encoder(folder, name=spec.base, pooling=spec.pooling or (Pooling.MEAN,))
    model, dense = _apply_spec(encoder.model, list(encoder.dense), spec)
    return SiameseEncoder(model, encoder.transformer, dense, encoder.token_types)


def _apply_spec(
    model: SentenceModel, dense: list[DenseLayer], spec: ModelSpec
) -> tuple[SentenceModel, list[DenseLayer]]:
    """A model as a recipe wants it; layers that the recipe replaces are left out."""
    pooled = model.dense[0].in_features if model.dense else model.dimensions
    width = pooled // len(model.pooling)
    pooling = spec.pooling or model.pooling
    if spec.dense is not None or len(pooling) != len(model.pooling):
        dense = []
    if spec.dense is not None:
        settings = Dense(
            folder="2_Dense",
            in_features=width * len(pooling),
            out_features=spec.dense.out_features,
            bias=spec.dense.bias,
            activation=spec.dense.activation,
        )
        dense = [DenseLayer(settings)]
    changed = model.model_copy(
        update={
            "pooling": pooling,
            "dense": tuple(layer.settings for layer in dense),
            "normalize": model.normalize if spec.normalize is None else spec.normalize,
            "max_tokens": min(spec.max_tokens or model.max_tokens, model.max_tokens),
            "dimensions": dense[-1].settings.out_features if dense else width * len(pooling),
            "prompts": {**model.prompts, **spec.prompts},
            "fingerprint": "",
        }
    )
    return changed, dense
