// The page before a search: its purpose, the size of the index, and example queries.
//
// Everything is requested with the reader's own credentials, each time.

import { byId, element } from "./dom.js";
import { search } from "./engine.js";
import { exampleQueries } from "./examples.js";
import { countText } from "./numbers.js";
import { countBody, sampleBody } from "./queries.js";
import { LONG_NAME, visible } from "./text.js";

const SAMPLED = 24;

/**
 * Show the start of an index; `ask` is called with a query that was chosen.
 *
 * Raises RequestFailed if the index cannot be searched.
 */
export async function showStart({ name, field, highlight }, ask, signal) {
  const body = byId("start-body");
  body.replaceChildren(element("p", { class: "note" }, "Counting documents…"));
  byId("start").hidden = false;
  const { answer } = await search(name, countBody(field), "off", signal);
  const documents = answer.hits.total.value;
  const embedded = answer.aggregations.embedded.doc_count;
  if (embedded === 0) {
    body.replaceChildren(...emptyIndex(name, documents));
    return;
  }
  const sample = await search(name, sampleBody(field, highlight, SAMPLED), "off", signal);
  const examples = exampleQueries(sample.answer.hits.hits, field);
  body.replaceChildren(...size(name, documents, embedded), ...offered(examples, ask));
}

function size(name, documents, embedded) {
  const number = element("strong", {}, `${countText(documents)} ${documents === 1 ? "document" : "documents"}`);
  const missing = embedded < documents ? `${countText(embedded)} of them have a vector; the others are found by their words only.` : "";
  const place = name.length > LONG_NAME ? "this index" : element("bdi", {}, visible(name));
  return [element("p", {}, number, " in ", place), missing && element("p", {}, missing)].filter(Boolean);
}

function offered(examples, ask) {
  if (examples.length === 0) return [];
  const buttons = examples.map((query) => element("li", {}, element("button", { type: "button", class: "example", dir: "auto", click: () => ask(query.replace(/…$/u, "")) }, query)));
  return [element("h3", { id: "examples-heading" }, "Try one of these"), element("ul", { class: "examples", "aria-labelledby": "examples-heading" }, buttons)];
}

/** Advice for an index without documents to search. */
function emptyIndex(name, documents) {
  const [state, remedy, command] = documents === 0
    ? ["has no documents yet.", "Load and embed some:", `es-sbert ingest --index ${name} articles.jsonl`]
    : [`has ${countText(documents)} ${documents === 1 ? "document" : "documents"}, none of them with a vector.`, "Embed them:", `es-sbert ingest --index ${name}`];
  return [
    element("p", {}, element("bdi", {}, visible(name)), ` ${state} ${remedy}`),
    element("p", {}, element("code", {}, visible(command))),
  ];
}
