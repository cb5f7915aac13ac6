"""The baselines of the Sentence-BERT paper, each a `SentenceEmbedder` or a `PairScorer`: `python -m
es_sbert.evaluation.baselines`.
"""
