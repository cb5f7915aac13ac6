"""Fine-tuning of sentence encoders in torch (extra `train`): from a recipe to a checked ONNX bundle.

recipe.py       what a run is: model, stages, data, objectives, hyperparameters (YAML, frozen pydantic)
data/           examples, read and checked before training starts; batches and how data sets are mixed
siamese.py      the siamese encoder; folder.py opens and writes it as a sentence-transformers folder
objectives/     what is minimised, one module each
task.py         what the trainer needs of a network; bi_encoder.py, cross_encoder.py, poly_encoder.py
trainer.py      transformers' Trainer, made to resume exactly and to count processes as one batch
precision.py    in which number format a run computes; compiled.py compiles its network
loss_check.py   stops at a loss that is not a number, without a wait for the GPU at every step
run.py          a whole run, from the recipe to the exported bundle
"""
