"""The dashboard of searches, from the gateway's log of them."""

from __future__ import annotations

from es_sbert.dashboards.boards import Panel, dashboard
from es_sbert.dashboards.charts import chart, count, figure, metric, over_time, per_query, per_value, pie, table
from es_sbert.dashboards.saved_objects import Product, SavedObject
from es_sbert.dashboards.views import DECIMAL, NUMBER, data_view
from es_sbert.engines.protocol import Json

_TIME = "@timestamp"
_PERCENTS = [50, 95, 99]


def search_objects(product: Product, pattern: str) -> list[SavedObject]:
    """The view of a gateway's log and the dashboard over it.

    Args:
        pattern: All months of the log.
    """
    times = {f"milliseconds.{part}": DECIMAL for part in ("total", "embedding", "upstream")}
    view = data_view(
        product, pattern, "Searches (es-sbert)", time_field=_TIME, formats=times | {"hits": NUMBER, "k": NUMBER}
    )
    searches = count("searches")
    found = per_query({"with hits": "zero_hits:false", "without a hit": "zero_hits:true"})
    shown = [
        Panel(figure(view, "Searches", [
            searches, metric("percentiles", "milliseconds.total", "ms", percents=_PERCENTS),
            metric("cardinality", "query_hash", "different queries"),
        ]), 48, 8),
        Panel(chart(view, "histogram", "Searches: rate by kind", [searches], over_time(_TIME),
                    split=per_value("kind", "kind"), axis="searches")),
        Panel(chart(view, "line", "Searches: latency", [_percentiles("total")], over_time(_TIME), axis="milliseconds")),
        Panel(chart(view, "line", "Searches: time of embedding", [_percentiles("embedding")], over_time(_TIME),
                    axis="milliseconds")),
        Panel(chart(view, "line", "Searches: time of the engine", [_percentiles("upstream")], over_time(_TIME),
                    axis="milliseconds")),
        Panel(chart(view, "histogram", "Searches: without a hit", [searches], over_time(_TIME), split=found,
                    axis="searches")),
        Panel(table(view, "Searches: queries without a hit", [searches, metric("max", _TIME, "last")],
                    [per_value("query_hash", "query (hash)", 50, missing="(by words alone)"),
                     per_value("query", "query", 1, missing="(not logged)")],
                    query="zero_hits:true",
                    description="Of searches by meaning; texts are there where the gateway runs with --log-queries.")),
        Panel(pie(view, "Searches: kinds", per_value("kind", "kind"), label="searches"), 16),
        Panel(pie(view, "Searches: answers", per_value("status", "status"), label="searches"), 16),
        Panel(table(view, "Searches: indices", [searches, metric("avg", "milliseconds.total", "ms")],
                    [per_value("index", "index"), per_value("api", "API", 5)]), 16),
    ]  # fmt: skip
    board = dashboard(
        product, "Searches", "What the gateway was asked, how long it took, and what found nothing.", shown,
        key=f"searches/{pattern}", since="now-7d",
    )  # fmt: skip
    return [view, *(panel.shows for panel in shown), board]


def _percentiles(part: str) -> Json:
    return metric("percentiles", f"milliseconds.{part}", "ms", percents=_PERCENTS)
