// The cosines of all hits, also of those that only the lexical search found, and their places in the hybrid list.

import { byId } from "./dom.js";
import { search } from "./engine.js";
import { addCosines, addPlaces, keyOf } from "./hits.js";
import { COLUMNS, cosineOf, cosinesBody } from "./queries.js";

let latest = new AbortController();

/** Add the cosines and places to the hits of all columns; if this fails, the hits are shown without them. */
export async function showCosines(asked, answers, searched) {
  latest.abort();
  latest = new AbortController();
  const signal = AbortSignal.any([searched, latest.signal]);
  addPlaces();
  const hits = [...answers.values()].flatMap((answer) => answer.hits.hits);
  if (hits.length === 0) return;
  try {
    const { answer } = await search(asked.index, cosinesBody(asked, hits), COLUMNS[0].mode, signal);
    // Elasticsearch 9.4 also finds documents without a vector, with the score 0.
    const near = answer.hits.hits.filter((hit) => hit._score > 0);
    const cosines = new Map(near.map((hit) => [keyOf(hit._index, hit._id), cosineOf(COLUMNS[0], hit)]));
    for (const list of document.querySelectorAll(".hits")) addCosines(list, cosines);
  } catch (error) {
    if (!signal.aborted) byId("cosines").textContent = `Some cosines are missing: ${error.message}`;
  }
}
