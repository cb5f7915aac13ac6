"""Evaluate models by the protocols of the Sentence-BERT paper (Reimers and Gurevych 2019, section 4 ff.).

evaluated_models.py   open a model as a SentenceEmbedder (a vector per text) or a PairScorer (a score per pair)
task_data.py          the data of each task; task_files.py reads it
task_runner.py        evaluate a model on the data of a task
pair_metrics.py, argument_similarity.py, senteval.py, retrieval_metrics.py
                      metrics: pure functions of vectors or scores and gold data
index_retrieval.py    retrieval from an Elasticsearch or OpenSearch index
evaluation_report.py  results as a table and as JSON; model_card.py: as a Markdown model card
"""
