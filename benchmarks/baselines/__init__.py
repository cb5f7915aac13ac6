"""The baselines of the Sentence-BERT paper: `python -m benchmarks.baselines` trains and evaluates them.

Each is a `SentenceEmbedder` or a `PairScorer`; `open_baseline` opens one.
"""
