"""ONNX export: graphs built from weights or traced with torch, int8 and fp16 variants, and the parity check."""
