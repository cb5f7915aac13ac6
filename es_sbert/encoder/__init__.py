"""From texts to sentence vectors: tokenise, sort by true tokens, token-budget batches, onnxruntime. No torch."""

from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import Encoded, EncoderInfo, TokenizedTexts

__all__ = ["Encoded", "Encoder", "EncoderInfo", "TokenizedTexts"]
