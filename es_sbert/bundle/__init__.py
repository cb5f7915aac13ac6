"""What a model is on disk: tokenizer, pooling, prompts, ONNX variants, fingerprint, parity reports. No torch."""
