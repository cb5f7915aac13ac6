"""Run models: tokenize texts, plan batches, open ONNX sessions on onnxruntime, CUDA and OpenVINO. No torch."""
