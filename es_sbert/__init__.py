"""Search an Elasticsearch or OpenSearch index by meaning, with Sentence-BERT (arXiv 1908.10084)."""

__version__ = "0.1.0"
