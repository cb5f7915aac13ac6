"""What is minimised: losses over the sentence vectors of a batch, one module each.

objective.py     what every objective is
build.py         from a recipe's settings to an objective
similarity.py    cosines and distances that stay finite where vectors vanish or coincide
softmax.py       cross-entropy of a classifier over pairs
regression.py    cosine against a gold score
triplet.py       an anchor nearer to a positive than to a negative
in_batch.py      the other examples of the batch as negatives
cosent.py        cosines in the order of the gold scores
distillation.py  a teacher's vectors, or a teacher's margins
matryoshka.py    any of them on the first d values of the vectors as well
"""
