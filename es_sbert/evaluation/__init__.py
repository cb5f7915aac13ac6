"""Measuring sentence encoders by the protocols of the Sentence-BERT paper (Reimers and Gurevych 2019, section 4 ff.).

models.py       what can be measured: an Embedder (one vector a text) or a PairScorer (one score a pair)
open.py         from what a user calls a model to one of the two: ONNX bundle (onnx.py), torch folder, baseline
baselines/      averaged word vectors, tf-idf, averaged transformer and CLS, BiLSTM-max
similarity.py   cosine, Euclidean, Manhattan and dot product of paired vectors
sts.py, triplet.py, argument.py, transfer.py, duplicates.py, retrieval.py
                one module a protocol: pure functions from vectors or scores and gold data to figures
data.py         the data of each task; files.py and beir.py read it (reading.py is what they share)
tasks.py        runs a model on the data of a task, gives a report
live.py         retrieval through a real index
report.py       figures as a table and as JSON; card.py: as a Markdown model card
"""
