"""Figures of Reimers and Gurevych 2019 (arXiv 1908.10084), × 100, for comparison."""

from __future__ import annotations

# Table 1: Spearman's ρ of cosines. STS12, 13, 14, 15, 16, STSb, SICK-R, mean.
STS = {
    "GloVe averaged": (55.14, 70.66, 59.73, 68.25, 63.66, 58.02, 53.76, 61.32),
    "BERT averaged": (38.78, 57.98, 57.98, 63.15, 61.06, 46.35, 58.40, 54.81),
    "BERT CLS": (20.16, 30.01, 20.09, 36.88, 38.08, 16.50, 42.63, 29.19),
    "InferSent-GloVe": (52.86, 66.75, 62.15, 72.77, 66.87, 68.03, 65.65, 65.01),
    "Universal Sentence Encoder": (64.49, 67.80, 64.61, 76.83, 73.18, 74.92, 76.69, 71.22),
    "SBERT-NLI-base": (70.97, 76.53, 73.19, 79.09, 74.30, 77.03, 72.91, 74.89),
    "SBERT-NLI-large": (72.27, 78.46, 74.90, 80.99, 76.25, 79.23, 73.75, 76.55),
    "SRoBERTa-NLI-base": (71.54, 72.49, 70.80, 78.74, 73.69, 77.77, 74.46, 74.21),
    "SRoBERTa-NLI-large": (74.53, 77.00, 73.18, 81.85, 76.82, 79.10, 74.29, 76.68),
}

# Table 2: ρ on STSb test of models tuned on STSb.
STSB = {
    "BERT-STSb-base (cross-encoder)": "84.30 ± 0.76",
    "SBERT-STSb-base": "84.67 ± 0.19",
    "SBERT-STSb-large": "84.45",
    "BERT-NLI-STSb-base (cross-encoder)": "88.33",
    "SBERT-NLI-STSb-base": "85.35 ± 0.17",
    "SBERT-NLI-STSb-large": "86.10 ± 0.13",
    "SRoBERTa-NLI-STSb-large": "86.15",
}

# Table 3: argument facets (AFS), r and ρ.
ARGUMENT = {
    ("no training", "tf-idf"): "46.77 / 42.95",
    ("no training", "GloVe averaged"): "32.40 / 34.00",
    ("no training", "InferSent-GloVe"): "27.08 / 26.63",
    ("10 folds", "SVR"): "63.33 / –",
    ("10 folds", "cross-encoder base"): "77.20 / 74.84",
    ("10 folds", "SBERT base"): "76.57 / 74.13",
    ("across topics", "cross-encoder base"): "58.49 / 57.23",
    ("across topics", "SBERT base"): "52.34 / 50.65",
}

# Table 4: Wikipedia sections, accuracy.
WIKI = {"mean vectors": 65.0, "skip-thoughts": 62.0, "BiLSTM": 74.0, "SBERT base": 80.42, "SBERT large": 80.78}

# Table 5: SentEval. MR, CR, SUBJ, MPQA, SST, TREC, MRPC, mean.
TRANSFER = {
    "GloVe averaged": (77.25, 78.30, 91.17, 87.85, 80.18, 83.0, 72.87, 81.52),
    "fastText averaged": (77.96, 79.23, 91.68, 87.81, 82.15, 83.6, 74.49, 82.42),
    "BERT averaged": (78.66, 86.25, 94.37, 88.66, 84.40, 92.8, 69.45, 84.94),
    "BERT CLS": (78.68, 84.85, 94.21, 88.23, 84.13, 91.4, 71.13, 84.66),
    "InferSent-GloVe": (81.57, 86.54, 92.50, 90.38, 84.18, 88.2, 75.77, 85.59),
    "Universal Sentence Encoder": (80.09, 85.19, 93.98, 86.70, 86.38, 93.2, 70.14, 85.10),
    "SBERT-NLI-base": (83.64, 89.43, 94.39, 89.86, 88.96, 89.6, 76.00, 87.41),
}

# Table 6: STSb dev. Pooling: (NLI softmax, STSb regression); features of the softmax (mean pooling): NLI.
POOLING = {"mean": (80.78, 87.44), "max": (79.07, 69.92), "cls": (79.80, 86.62)}
FEATURES = {
    ("u", "v"): 66.04,
    ("|u-v|",): 69.78,
    ("u*v",): 70.54,
    ("|u-v|", "u*v"): 78.37,
    ("u", "v", "u*v"): 77.44,
    ("u", "v", "|u-v|"): 80.78,
    ("u", "v", "|u-v|", "u*v"): 80.44,
}

# Table 7: sentences a second: CPU (i7-5820K), GPU (V100).
SPEED = {
    "GloVe averaged": (6469, None),
    "InferSent": (137, 1876),
    "Universal Sentence Encoder": (67, 1318),
    "SBERT base": (44, 1378),
    "SBERT base, smart batching": (83, 2042),
}
