"""ONNX graphs built from a checkpoint's weights or traced, their int8 and fp16 variants, and the parity gate."""
