"""Sentence vectors of texts and scores of text pairs on onnxruntime. No torch."""
