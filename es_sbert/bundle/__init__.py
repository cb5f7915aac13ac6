"""Model folders and ONNX bundles on disk: reading, checking, fingerprints, and finding a model by name. No torch."""
