"""Run models: tokenize texts, plan batches, open ONNX sessions on onnxruntime, CUDA and OpenVINO.

Only `siamese_encoder` needs torch (the extra `train`): training, and the reference for exported graphs.
"""
