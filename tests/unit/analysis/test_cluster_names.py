"""Names of clusters against class-based TF-IDF by hand, in several languages and without texts."""

from __future__ import annotations

from collections import Counter
from math import log
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.analysis import cluster_names
from es_sbert.analysis.clusters import Clustering, TextCluster, split_words
from es_sbert.errors import WrongArgument
from tests.raised import raises


def clustering(*groups: range | list[int]) -> Clustering:
    return Clustering(tuple(TextCluster(tuple(group), (1.0,) * len(group)) for group in groups), None)


def reference(documents: list[list[str]]) -> list[list[str]]:
    """Words of each class by tf · log(1 + A / f), those that are twice as frequent there as outside first."""
    counts = [Counter(words) for words in documents]
    total: Counter[str] = sum(counts, Counter())
    mean = total.total() / len(documents)
    ranked = []
    for own in counts:
        others = total - own

        def rank(word: str, own: Counter[str] = own, others: Counter[str] = others) -> tuple[bool, float, str]:
            typical = own[word] * others.total() >= 2 * others[word] * own.total()
            return not typical, -own[word] * log(1 + mean / total[word]), word

        ranked.append(sorted(own, key=rank))
    return ranked


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(["aa", "bb", "cc", "dd", "ee"]), min_size=1, max_size=8), min_size=1, max_size=5)
)
def test_words_have_the_greatest_class_based_tf_idf(documents: list[list[str]]) -> None:
    texts = [" ".join(words) for words in documents]
    found = clustering(*([number] for number in range(len(texts))))
    expected = [", ".join(words[:4]) for words in reference(documents)]
    # A name that is taken gets a number.
    assert [name.partition(" (")[0] for name in cluster_names(texts, found)] == expected


def test_english_stop_words_and_tags_are_removed() -> None:
    texts = ["the cat the the", "whatever"]
    assert cluster_names(texts, clustering([0], [1])) == ["cat", "cluster 1"]
    assert cluster_names(["I don't, we'll and it's won't"], clustering([0])) == ["cluster 0"]
    assert cluster_names(['<p class="big">cat</p><br/>', "1 < 2"], clustering([0], [1])) == ["cat", "cluster 1"]


INVOICES = ["ich habe die Rechnung nicht bekommen", "meine Rechnung ist nicht da, und ich warte", "ich warte auf sie"]
DRILLS = ["Bohrmaschine Akku 18 Volt", "Akku Bohrmaschine Koffer", "Bohrmaschine Volt Koffer"]
WARS = ["the war was long and it was hard", "a war is over and they are here", "the end of the war is near to us"]


def test_stop_words_of_the_languages_of_a_cluster_are_removed() -> None:
    groups = clustering(range(3), range(3, 6), range(6, 9))
    invoices, drills, wars = (name.split(", ") for name in cluster_names(INVOICES + DRILLS + WARS, groups))
    assert set(invoices[:3]) == {"rechnung", "warte", "bekommen"}
    assert set(drills) == {"bohrmaschine", "akku", "volt", "koffer"}
    assert wars[0] == "war"  # a stop word of German alone
    # A cluster of two languages.
    texts = [*INVOICES, "je cherche la facture avec le logo", "la facture est dans le tiroir", *DRILLS]
    assert not {"ich", "und", "le", "la"} & set(cluster_names(texts, clustering(range(5), range(5, 8)))[0].split(", "))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("state-of-the-art, well\u2010known -- and -that-", ["state-of-the-art", "well\u2010known", "and", "that"]),
        ("COVID-19 in 2020: 3d 42 b2b x", ["covid-19", "in", "3d", "b2b"]),
        ("हिन्दी में लिखना", ["हिन्दी", "में", "लिखना"]),
        ("می‌خواهم", ["می‌خواهم"]),
        ("猫 が 眠る", ["猫", "が", "眠る"]),
    ],
)
def test_split_words_in_many_scripts(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_clusters_without_words_are_numbered() -> None:
    assert cluster_names(["", "", ""], clustering([0, 1], [2])) == ["cluster 0", "cluster 1"]
    assert cluster_names(["", "cat", "42"], clustering([1], [0, 2])) == ["cat", "cluster 1"]
    assert cluster_names([], clustering()) == []


@given(st.lists(st.sampled_from(["", "cat", "dog", "cat dog", "cluster 1"]), max_size=8))
def test_names_differ(texts: list[str]) -> None:
    names = cluster_names(texts, clustering(*([number] for number in range(len(texts)))))
    assert len(set(names)) == len(names) == len(texts)


@pytest.mark.parametrize(
    "texts", ["ab", {0: "a", 1: "b"}, {"a", "b"}, ["a", None], ["a", float("nan")], [("a", "b")] * 2]
)
def test_only_texts_name_clusters(texts: Any) -> None:
    with raises(WrongArgument, "texts"):
        cluster_names(texts, clustering([0], [1]))
