"""Table 4: sentences of one section of Wikipedia."""

from __future__ import annotations

from benchmarks.common import table
from benchmarks.tables import models, paper
from benchmarks.tables.lab import Lab, cells, figure

TITLE = "Wikipedia sections (the paper's table 4)"
NOTE = (
    "Accuracy × 100 on triplets: is a sentence nearer to one of the same section than to one of another section of the "
    "same article? 63,419 triplets of 1,056 articles to train on and 4,378 of other articles to measure, rebuilt after "
    "Dor et al. 2018, replace the paper's 1.8 million and 222,957. e5-small-v2 learned from the first 25,400 triplets "
    "at a learning rate of 5e-5."
)


def rows(lab: Lab) -> models.Rows:
    """Our rows."""
    onnx, base = lab.onnx(), lab.profile.base
    return [
        ("word2vec averaged", lambda: (f"word2vec:{models.word_vectors(lab)}", ())),
        (f"{base}, before", lambda: (base, onnx)),
        (f"{base}, after one epoch of triplets", lambda: (models.wiki(lab), onnx)),
        ("e5-small-v2, before", lambda: (models.fetched(lab, "e5-small-v2"), onnx)),
        (f"e5-small-v2, after {models.WIKI_EPOCHS} epochs of triplets", lambda: (models.wiki_from_e5(lab), onnx)),
    ]


def make(lab: Lab) -> str:
    """The table."""
    lines = [[f"*{name}*", f"{value:.2f}", ""] for name, value in paper.WIKI.items()]
    for name, model in rows(lab):
        lines.append(
            [
                name,
                *cells(
                    2,
                    lambda name=name, model=model: [
                        f"{figure(lab.report('triplet', name, model), 'wiki-sections-dev', f'accuracy_{distance}'):.2f}"
                        for distance in ("euclidean", "cosine")
                    ],
                ),
            ]
        )
    return table(["", "Euclidean", "cosine"], lines)
