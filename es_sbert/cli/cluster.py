"""`es-sbert cluster`: find clusters of texts and name them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.analysis.clusters import cluster_names, cluster_texts
from es_sbert.cli import analysis
from es_sbert.cli.options import setting_option
from es_sbert.messages import escape_unprintable, log_message, pluralize

if TYPE_CHECKING:
    from es_sbert.analysis.clusters import Clustering
    from es_sbert.analysis.text_collection import TextCollection
    from es_sbert.engines.rest import Json


# Different texts of each cluster that are shown on the terminal.
_CENTRAL_TEXTS = 3


@cloup.command()
@click.argument("files", nargs=-1)
@option_group("Options", setting_option(cluster_texts, "k -k --k NUMBER|auto"))
@analysis.write_field_option(
    "With --index: write each document's cluster name into this keyword field (e.g. cluster); remove the field from "
    "documents without a vector."
)
@analysis.source_options
@analysis.output_options
def cluster(files: tuple[str, ...], k: Any, **options: Any) -> int:
    """Find clusters of texts and name them.

    The texts come from FILES, which are embedded first, or from an index, whose vectors are read. They are clustered by
    k-means. A cluster is named by the words that set it apart (class-based TF-IDF) and shown with its most central
    texts. A document that is split into chunks counts once, by the mean of its chunks.

    Documents without text or vector are left out and counted. Nothing is written to the index without --write-field.

    Exit codes: 0 done, 1 some documents did not get their value of --write-field, 2 error, 130 interrupted.

    \b
    Examples:
      es-sbert cluster tickets.jsonl --text-field title --id-field id
      es-sbert cluster --index docs --html clusters.html
      es-sbert cluster --index docs --k 20 -o clusters.jsonl
      es-sbert cluster --index docs --k 20 --write-field cluster
    """
    from es_sbert.errors import require_extra

    analysis.check_options(files, options)
    require_extra("analysis", "sklearn")
    fields = [] if options["write_field"] is None else [options["write_field"]]
    with analysis.field_writer(options) as writer:
        texts = analysis.read_texts(files, options, fields)
        begin = time.perf_counter()
        found = cluster_texts(texts.vectors, k=k, starts=texts.starts)
        names = cluster_names(texts.texts, found)
        seconds = time.perf_counter() - begin
        analysis.write_output(_findings(found, names, texts), files, options)
        log_message(f"{_summary(found, len(texts), chosen=k == 'auto')}, in {seconds:.1f} s")
        values = {one: name for name, group in zip(names, found.clusters, strict=True) for one in group.members}
        return analysis.write_field_values(writer, texts, values, options)


# Below, the structure of the clusters is weak (Kaufman and Rousseeuw 1990).
_CLEAR_SILHOUETTE = 0.5


def _findings(found: Clustering, names: Sequence[str], texts: TextCollection) -> analysis.Findings:
    from es_sbert.analysis.html_report import ReportGroup

    facts = [("clusters", f"{len(found.clusters):,}")]
    if found.silhouette is not None:
        separated = "weakly" if found.silhouette < _CLEAR_SILHOUETTE else "clearly"
        facts.append(("silhouette", f"{found.silhouette:.3f}, {separated} separated"))
    groups = [
        ReportGroup(name, cluster.members, cluster.cosines) for name, cluster in zip(names, found.clusters, strict=True)
    ]
    objects, lines = _json_objects(found, names, texts), _text_lines(found, names, texts)
    return analysis.Findings("clusters", "Clusters", texts, groups, facts, objects, lines)


def _json_objects(found: Clustering, names: Sequence[str], texts: TextCollection) -> Iterator[Json]:
    """Yield the texts of each cluster, the most central first."""
    for number, (name, cluster) in enumerate(zip(names, found.clusters, strict=True)):
        for member, cosine in zip(cluster.members, cluster.cosines, strict=True):
            of_text = {"id": texts.ids[member], "cosine": cosine, "text": texts.texts[member]}
            yield {"cluster": number, "name": name} | of_text


def _text_lines(found: Clustering, names: Sequence[str], texts: TextCollection) -> Iterator[str]:
    for number, (name, cluster) in enumerate(zip(names, found.clusters, strict=True)):
        numbered = f"cluster {number}"
        named = "" if name == numbered else f"  {escape_unprintable(name)}"
        yield f"{numbered}: {pluralize(len(cluster.members), 'text')}{named}"
        distinct: dict[str, tuple[int, float]] = {}
        for member, cosine in zip(cluster.members, cluster.cosines, strict=True):
            distinct.setdefault(texts.texts[member] or texts.ids[member], (member, cosine))
        for member, cosine in islice(distinct.values(), _CENTRAL_TEXTS):
            yield f"  {cosine:.5f}  {analysis.text_excerpt(texts, member)}"


def _summary(found: Clustering, count: int, *, chosen: bool) -> str:
    facts = [f"{pluralize(len(found.clusters), 'cluster')} of {pluralize(count, 'text')} by kmeans"]
    facts += ["their number chosen by silhouette"] if chosen else []
    facts += [] if found.silhouette is None else [f"silhouette {found.silhouette:.3f}"]
    return ", ".join(facts)
