// The hits of all columns, placed on the map by the gateway.

import { byId, element } from "./dom.js";
import { askPage } from "./engine.js";
import { addCosines, itemId, keyOf } from "./hits.js";
import { mapOf } from "./map.js";
import { titleOf, titleText } from "./text.js";
import { show as showColumn } from "./views.js";

let latest = new AbortController();

/** Place the hits on a new map; if this fails, the hits are shown without a map. */
export async function drawMap(asked, answers, searched) {
  latest.abort();
  latest = new AbortController();
  const signal = AbortSignal.any([searched, latest.signal]);
  const hits = new Map();
  for (const [column, answer] of answers) {
    answer.hits.hits.forEach((hit, position) => {
      const key = keyOf(hit._index, hit._id);
      if (!hits.has(key)) hits.set(key, { hit, columns: new Set(), column, item: itemId({ name: column }, position) });
      hits.get(key).columns.add(column);
    });
  }
  if (hits.size === 0) return;
  const origin = asked.like === null ? { query: asked.text } : { document: asked.like };
  const places = [...hits.values()].map(({ hit }) => ({ index: hit._index, id: hit._id }));
  byId("map").hidden = false;
  try {
    const drawn = await askPage("map", { index: asked.index, field: asked.field.name, ...origin, hits: places }, signal);
    const placed = new Map(drawn.hits.map(({ index, id, x, y, cosine }) => [keyOf(index, id), { x, y, cosine }]));
    for (const list of document.querySelectorAll(".hits")) addCosines(list, placed);
    // In the order of the hits; documents deleted since the search have no point.
    const points = [...hits].filter(([key]) => placed.has(key)).map(([key, { hit, columns }]) => (
      { ...placed.get(key), key, title: titleText(titleOf(hit, asked.field)), kind: kindOf(columns) }
    ));
    const show = ({ key }) => {
      const { column, item } = hits.get(key);
      showColumn(column);
      byId(item)?.focus();
    };
    byId("map-drawing").replaceChildren(...mapOf(points, drawn.query, asked.like === null ? "your query" : "that document", show, caption));
  } catch (error) {
    if (signal.aborted) return;
    byId("map-drawing").replaceChildren(element("p", { class: "warning" }, `The map cannot be drawn: ${error.message}`));
  }
}

const caption = (words) => { byId("map-caption").textContent = words; };

function kindOf(columns) {
  if (columns.has("like")) return "semantic";
  if (columns.has("lexical")) return columns.has("semantic") ? "both" : "lexical";
  return columns.has("semantic") ? "semantic" : "other";
}
