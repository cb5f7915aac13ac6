"""Fine-tune sentence encoders with PyTorch (extra `train`): from a recipe to a checked ONNX bundle.

recipe.py            a recipe: model, stages, data, objectives, hyperparameters, read from YAML
training_run.py      a whole run: check inputs, train each stage, export, write the model card
training_stage.py    one stage, from its data and a model to a better model
trainer.py           transformers' Trainer with exact resume, mixed data sets and errors with a remedy
*_task(s).py         what is trained: bi-encoder, cross-encoder, poly-encoder
objectives/, data/   the losses; reading, checking and batching the examples
"""
