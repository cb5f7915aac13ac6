// The cosines of all hits, also of those that only the lexical search found; the gateway reads their vectors.

import { byId } from "./dom.js";
import { askPage } from "./engine.js";
import { addCosines, keyOf } from "./hits.js";

let latest = new AbortController();

/** Add the cosines to the hits of all columns; if this fails, the hits are shown without them. */
export async function showCosines(asked, answers, searched) {
  latest.abort();
  latest = new AbortController();
  const signal = AbortSignal.any([searched, latest.signal]);
  const hits = new Map();
  for (const answer of answers.values()) {
    for (const { _index, _id } of answer.hits.hits) hits.set(keyOf(_index, _id), { index: _index, id: _id });
  }
  if (hits.size === 0) return;
  const origin = asked.like === null ? { query: asked.text } : { document: asked.like };
  try {
    const found = await askPage("cosines", { index: asked.index, field: asked.field.name, ...origin, hits: [...hits.values()] }, signal);
    const cosines = new Map(found.hits.map(({ index, id, cosine }) => [keyOf(index, id), cosine]));
    for (const list of document.querySelectorAll(".hits")) addCosines(list, cosines);
  } catch (error) {
    if (!signal.aborted) byId("cosines").textContent = `Some cosines are missing: ${error.message}`;
  }
}
