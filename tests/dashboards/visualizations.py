"""Aggregations of a visualization as the request that both products make of them (`AggConfigs.toDsl`)."""

from __future__ import annotations

from typing import Any

import orjson

from es_sbert.diagnostics.saved_objects import SavedObject

Json = dict[str, Any]


def vis_state(saved: SavedObject) -> Json:
    state: Json = orjson.loads(saved.attributes["visState"])
    return state


def search_source(saved: SavedObject) -> Json:
    source: Json = orjson.loads(saved.attributes["kibanaSavedObjectMeta"]["searchSourceJSON"])
    return source


def request(saved: SavedObject) -> Json:
    """Body of the search: buckets nested in their order, metrics inside the innermost."""
    aggs = vis_state(saved)["aggs"]
    metrics = [agg for agg in aggs if agg["schema"] == "metric"]
    buckets = [agg for agg in aggs if agg["schema"] != "metric"]
    counted = {agg["id"] for agg in metrics if agg["type"] == "count"}
    level: Json = {agg["id"]: _metric(agg) for agg in metrics if agg["id"] not in counted}
    for agg in reversed(buckets):
        # A bucket that is ordered by a metric carries it itself, wherever it stands.
        order = agg["params"].get("orderBy")
        ordering = {m["id"]: _metric(m) for m in metrics if m["id"] == order and order not in counted}
        inner = ordering | level
        level = {agg["id"]: _bucket(agg, counted) | ({"aggs": inner} if inner else {})}
    text = search_source(saved)["query"]["query"]
    query = {"query_string": {"query": text, "analyze_wildcard": True}} if text else {"match_all": {}}
    return {"size": 0, "query": {"bool": {"must": [query]}}, "aggs": level, "track_total_hits": True}


def _metric(agg: Json) -> Json:
    params = agg["params"]
    if agg["type"] == "percentiles":
        return {"percentiles": {"field": params["field"], "percents": params["percents"], "keyed": False}}
    return {agg["type"]: {"field": params["field"]}}


def _bucket(agg: Json, counted: set[str]) -> Json:
    params = agg["params"]
    if agg["type"] == "terms":
        by = "_count" if params["orderBy"] in counted else params["orderBy"]
        body = {"field": params["field"], "size": params["size"], "order": {by: params["order"]}}
        return {"terms": body | ({"missing": "__missing__"} if params["missingBucket"] else {})}
    if agg["type"] == "date_histogram":
        return {
            "date_histogram": {"field": params["field"], "fixed_interval": "1h", "time_zone": "UTC", "min_doc_count": 1}
        }
    if agg["type"] == "histogram":
        return {"histogram": {"field": params["field"], "interval": params["interval"], "min_doc_count": 1}}
    assert agg["type"] == "filters", agg["type"]
    return {
        "filters": {
            "filters": {
                one["label"]: {"query_string": {"query": one["input"]["query"], "analyze_wildcard": True}}
                for one in params["filters"]
            }
        }
    }
