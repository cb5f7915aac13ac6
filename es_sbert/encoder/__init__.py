"""From texts to sentence vectors: tokenise, sort by true tokens, token-budget batches, onnxruntime. No torch."""
