"""Texts to vectors, and pairs to scores, on onnxruntime. No torch."""

from es_sbert.encoder.embeddings import EncodeResult, EncoderInfo
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.tokenizer import TokenizedTexts

__all__ = ["EncodeResult", "Encoder", "EncoderInfo", "TokenizedTexts"]
