"""Training objectives: losses over the sentence vectors of a batch.

settings.py    their settings in a recipe, without torch
objective.py   the base class, cosines and distances
losses.py      the losses, and how a recipe's settings become one
"""
