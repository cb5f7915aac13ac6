"""Sentence encoders in torch: training, evaluation, and the reference for exported graphs.

Requires the `train` extra.
"""
