"""Visualizations built from aggregations, which Kibana and OpenSearch Dashboards both support (unlike Lens)."""

from __future__ import annotations

from collections.abc import Sequence

from es_sbert.dashboards.saved_objects import SavedObject, json_string, search_source, stable_id
from es_sbert.engines.protocol import Json


def count_aggregation(label: str = "documents") -> Json:
    return _aggregation("count", customLabel=label)


def metric_aggregation(kind: str, field: str, label: str, **params: object) -> Json:
    """`sum`, `avg`, `max`, `cardinality` or `percentiles` (with `percents`) of a field."""
    return _aggregation(kind, field=field, customLabel=label, **params)


def date_histogram(field: str) -> Json:
    """Buckets of time, as wide as suits the time picker."""
    return _aggregation(
        "date_histogram",
        field=field,
        interval="auto",
        drop_partials=False,
        min_doc_count=1,
        extended_bounds={},
        scaleMetricValues=False,
    )


def terms_aggregation(field: str, label: str, size: int = 10, *, missing: str | None = None) -> Json:
    """The values with the most documents.

    Args:
        missing: What stands for documents without a value; None leaves them out. For fields of strings.
    """
    return _aggregation(
        "terms",
        field=field,
        size=size,
        order="desc",
        orderBy="1",
        otherBucket=False,
        otherBucketLabel="Other",
        missingBucket=missing is not None,
        missingBucketLabel=missing or "Missing",
        customLabel=label,
    )


def histogram(field: str, interval: int, label: str) -> Json:
    """Buckets of equal width over a number."""
    return _aggregation(
        "histogram",
        field=field,
        interval=interval,
        min_doc_count=False,
        has_extended_bounds=False,
        extended_bounds={"min": "", "max": ""},
        customLabel=label,
    )


def filters_aggregation(queries: dict[str, str]) -> Json:
    """A bucket a query: label → query in Lucene's syntax."""
    filters = [{"input": {"query": query, "language": "lucene"}, "label": label} for label, query in queries.items()]
    return _aggregation("filters", filters=filters)


def _aggregation(kind: str, **params: object) -> Json:
    return {"type": kind, "params": params}


def metric_visualization(
    view: SavedObject,
    title: str,
    metrics: Sequence[Json],
    *,
    split: Json | None = None,
    query: str = "",
    description: str = "",
) -> SavedObject:
    """Large numbers.

    Args:
        split: A number for each of its buckets.
    """
    look = {
        "percentageMode": False, "useRanges": False, "colorSchema": "Green to Red", "metricColorMode": "None",
        "colorsRange": [{"from": 0, "to": 10000}], "labels": {"show": True}, "invertColors": False,
        "style": {"bgFill": "#000", "bgColor": False, "labelColor": False, "subText": "", "fontSize": 36},
    }  # fmt: skip
    params = {"type": "metric", "addTooltip": True, "addLegend": False, "metric": look}
    aggs = _number_aggregations(metrics, [] if split is None else [("group", split)])
    return _visualization(view, "metric", title, params, aggs, query, description)


def pie_chart(
    view: SavedObject, title: str, split: Json, *, label: str = "documents", query: str = "", description: str = ""
) -> SavedObject:
    """Shares of the documents."""
    params = {
        "type": "pie", "addTooltip": True, "addLegend": True, "legendPosition": "right", "isDonut": True,
        "labels": {"show": False, "values": True, "last_level": True, "truncate": 100},
    }  # fmt: skip
    return _visualization(
        view,
        "pie",
        title,
        params,
        _number_aggregations([count_aggregation(label)], [("segment", split)]),
        query,
        description,
    )


def data_table(
    view: SavedObject,
    title: str,
    metrics: Sequence[Json],
    rows: Sequence[Json],
    *,
    query: str = "",
    description: str = "",
) -> SavedObject:
    """A row for each bucket."""
    params = {
        "perPage": 10, "showPartialRows": False, "showMetricsAtAllLevels": False, "showTotal": False,
        "totalFunc": "sum", "percentageCol": "", "sort": {"columnIndex": None, "direction": None},
    }  # fmt: skip
    return _visualization(
        view,
        "table",
        title,
        params,
        _number_aggregations(metrics, [("bucket", row) for row in rows]),
        query,
        description,
    )


def xy_chart(
    view: SavedObject,
    kind: str,
    title: str,
    metrics: Sequence[Json],
    x: Json,
    *,
    split: Json | None = None,
    axis: str = "documents",
    query: str = "",
    description: str = "",
) -> SavedObject:
    """Bars (`histogram`, stacked) or lines (`line`) along an axis.

    Args:
        x: The buckets along it.
        split: A series for each of its buckets.
        axis: What the other axis measures.
    """
    mode = "stacked" if kind == "histogram" else "normal"
    series = [
        {
            "show": True,
            "type": kind,
            "mode": mode,
            "valueAxis": "ValueAxis-1",
            "interpolate": "linear",
            "data": {"label": agg["params"]["customLabel"], "id": str(number)},
            "drawLinesBetweenPoints": True,
            "lineWidth": 2,
            "showCircles": True,
        }
        for number, agg in enumerate(metrics, 1)
    ]
    params = {
        "type": kind, "grid": {"categoryLines": False}, "categoryAxes": [_category_axis()],
        "valueAxes": [_value_axis(axis)], "seriesParams": series, "addTooltip": True, "addLegend": True,
        "legendPosition": "right", "times": [], "addTimeMarker": False, "labels": {"show": False},
        "thresholdLine": {"show": False, "value": 10, "width": 1, "style": "full", "color": "#E7664C"},
    }  # fmt: skip
    buckets = [("segment", x), *([("group", split)] if split is not None else [])]
    return _visualization(view, kind, title, params, _number_aggregations(metrics, buckets), query, description)


def _category_axis() -> Json:
    return {
        "id": "CategoryAxis-1",
        "type": "category",
        "position": "bottom",
        "show": True,
        "style": {},
        "scale": {"type": "linear"},
        "labels": {"show": True, "filter": True, "truncate": 100},
        "title": {},
    }


def _value_axis(title: str) -> Json:
    return {
        "id": "ValueAxis-1",
        "name": "LeftAxis-1",
        "type": "value",
        "position": "left",
        "show": True,
        "style": {},
        "scale": {"type": "linear", "mode": "normal"},
        "labels": {"show": True, "rotate": 0, "filter": False, "truncate": 100},
        "title": {"text": title},
    }


def _number_aggregations(metrics: Sequence[Json], buckets: Sequence[tuple[str, Json]]) -> list[Json]:
    """Aggregations with their ids and places; the first metric is `1`, by which buckets of values are ordered."""
    placed = [*(("metric", agg) for agg in metrics), *buckets]
    return [
        {"id": str(number), "enabled": True, "type": agg["type"], "schema": place, "params": agg["params"]}
        for number, (place, agg) in enumerate(placed, 1)
    ]


def _visualization(
    view: SavedObject, kind: str, title: str, params: Json, aggs: list[Json], query: str, description: str
) -> SavedObject:
    meta, references = search_source(view, query=query)
    attributes = {
        "title": title,
        "description": description,
        "visState": json_string({"title": title, "type": kind, "params": params, "aggs": aggs}),
        "uiStateJSON": "{}",
        "version": 1,
        "kibanaSavedObjectMeta": meta,
    }
    return SavedObject("visualization", stable_id("visualization", view.id, title), attributes, references)
