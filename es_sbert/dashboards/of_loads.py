"""The dashboard of a load: what an index holds by model, and what its loads reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from es_sbert.dashboards.boards import Panel, dashboard
from es_sbert.dashboards.charts import (
    chart,
    count,
    figure,
    metric,
    over_time,
    per_interval,
    per_query,
    per_value,
    table,
)
from es_sbert.dashboards.saved_objects import Product, SavedObject
from es_sbert.dashboards.views import DECIMAL, NUMBER, data_view, saved_search, vector_formats, vector_patterns
from es_sbert.index.meta import VectorFieldMeta, document_meta_field
from es_sbert.index.text import TextTemplate

# Few enough bars for the longest texts that models read (512 tokens), and for passages of whole books.
_TOKENS_A_BAR = 16


def index_objects(product: Product, index: str, fields: Mapping[str, VectorFieldMeta],
                  reports: SavedObject | None, behind: str | None = None) -> list[SavedObject]:  # fmt: skip
    """The views, the saved search and the dashboard of an index.

    Args:
        fields: Its vector fields, at least one.
        reports: The view of the loads' reports; None where no load has left one.
        behind: Where `index` is an alias, the index behind it: loads may have named either.
    """
    formats, hidden = vector_formats(fields), vector_patterns(fields)
    view = data_view(product, index, f"{index} (es-sbert)", formats=formats, hidden=hidden)
    documents = saved_search(product, view, f"{index}: documents", "Texts without vectors, the best hit first.",
                             _columns(fields))  # fmt: skip
    objects = [view]
    panels: list[Panel] = []
    for field, meta in fields.items():
        beside = document_meta_field(field)
        timed = data_view(
            product, index, f"{index} by {beside}.embedded_at (es-sbert)", time_field=f"{beside}.embedded_at",
            key=field, formats=formats, hidden=hidden,
        )  # fmt: skip
        objects.append(timed)
        panels += _field_panels(index, view, timed, field, meta)
    if reports is not None:
        panels += _report_panels(index, reports, dict.fromkeys([index, behind or index]))
    panels.append(Panel(documents, 48, 18))
    models = "; ".join(f"{field}: {meta.model} ({meta.fingerprint[:8]})" for field, meta in fields.items())
    board = dashboard(
        product, f"{index}: load", f"What is embedded in {index}, by which model. {models}.", panels,
        key=f"load/{index}", since="now-30d",
    )  # fmt: skip
    return [*objects, *(panel.shows for panel in panels), board]


def _columns(fields: Mapping[str, VectorFieldMeta]) -> list[str]:
    """The fields that are embedded, then what is known of their vectors."""
    texts = [name for meta in fields.values() if meta.text for name in TextTemplate.parse(meta.text).fields]
    beside = [
        f"{document_meta_field(field)}.{name}"
        for field in fields
        for name in ("tokens", "truncated", "embedded_at", "fingerprint")
    ]
    return list(dict.fromkeys([*texts, *beside]))


def _field_panels(index: str, view: SavedObject, timed: SavedObject, field: str, meta: VectorFieldMeta) -> list[Panel]:
    beside = document_meta_field(field)
    states = {
        "current vector": f'{beside}.fingerprint:"{meta.fingerprint}"',
        "vector of another model": f'_exists_:{beside}.fingerprint AND NOT {beside}.fingerprint:"{meta.fingerprint}"',
        "no vector": f"NOT _exists_:{beside}.fingerprint",
        "truncated": f"{beside}.truncated:true",
    }
    title = f"{index}.{field}"
    by_model = per_value(f"{beside}.fingerprint", "model")
    return [
        Panel(figure(view, f"{title}: documents", [count()], split=per_query(states),
                     description="Documents without a vector have no text, or wait to be embedded."), 48, 8),
        Panel(table(view, f"{title}: models",
                    [count(), metric("sum", f"{beside}.tokens", "tokens"),
                     metric("max", f"{beside}.embedded_at", "last embedded")], [by_model])),
        Panel(chart(view, "histogram", f"{title}: tokens a document", [count()],
                    per_interval(f"{beside}.tokens", _TOKENS_A_BAR, "tokens"),
                    split=per_value(f"{beside}.truncated", "truncated", 2))),
        Panel(chart(timed, "histogram", f"{title}: embedded", [count()], over_time(f"{beside}.embedded_at"),
                    split=by_model), 48),
    ]  # fmt: skip


def reports_view(product: Product, name: str) -> SavedObject:
    """The view of what `es-sbert ingest --report-index NAME` writes."""
    counts = (
        "read",
        "indexed",
        "updated",
        "unchanged",
        "dead",
        "left",
        "pruned",
        "truncated",
        "lost_tokens",
        "retries",
    )
    formats = dict.fromkeys(counts, NUMBER) | {"seconds": DECIMAL, "documents_per_second": DECIMAL}
    return data_view(product, name, "Loads (es-sbert)", time_field="@timestamp", formats=formats)


def _report_panels(index: str, reports: SavedObject, names: Iterable[str]) -> list[Panel]:
    only = " OR ".join(f'index:"{name}"' for name in names)
    ends = [metric("sum", name, label) for name, label in (
        ("indexed", "embedded"), ("updated", "updated"), ("unchanged", "unchanged"), ("dead", "not loaded"),
        ("left", "left for the next run"),
    )]  # fmt: skip
    return [
        Panel(chart(reports, "histogram", f"{index}: ends of documents", ends, over_time("@timestamp"), query=only)),
        Panel(table(
            reports, f"{index}: loads",
            [metric("sum", "read", "read"), metric("sum", "dead", "not loaded"), metric("sum", "retries", "retries"),
             metric("avg", "documents_per_second", "documents/s"), metric("sum", "seconds", "seconds")],
            [over_time("@timestamp"), per_value("exit_code", "exit code")], query=only,
        )),
    ]  # fmt: skip
