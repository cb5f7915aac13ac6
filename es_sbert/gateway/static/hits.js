// One column of hits.

import { element } from "./dom.js";
import { excerptRuns, titleRuns } from "./excerpts.js";
import { cosineText, countText, durationText, scoreText, valueText } from "./numbers.js";
import { COSINE_MEANING, cosineOf } from "./queries.js";
import { titleOf, valueAt, visible } from "./text.js";

const FACTS_SHOWN = 6;
const LONGEST_FACT = 60;

/** Identifies a hit on the whole page. */
export const keyOf = (index, id) => JSON.stringify([index, id]);

/** Number of documents that a search found, as far as the engine counted them. */
export function totalText({ hits: { total: { value, relation } } }) {
  return `${relation === "gte" ? "over " : ""}${countText(value)}`;
}

/** Number of hits, and time. */
export function summaryOf({ answer, milliseconds }) {
  const { failed } = answer._shards;
  const lost = failed > 0 ? `, ${countText(failed)} ${failed === 1 ? "shard" : "shards"} failed` : "";
  const late = answer.timed_out ? ", stopped by a timeout" : "";
  const documents = answer.hits.total.value === 1 ? "document" : "documents";
  return `${totalText(answer)} ${documents} in ${durationText(milliseconds)} (engine ${durationText(answer.took)})${lost}${late}`;
}

/** The hits as a list. */
export function listOf(column, answer, { field }) {
  const items = answer.hits.hits.map((hit) => {
    const excerpt = excerptRuns(hit, field);
    return element(
      "li",
      { tabindex: "-1", "data-key": keyOf(hit._index, hit._id) },
      element("h4", { dir: "auto" }, nodesOf(titleRuns(hit, field))),
      excerpt.length === 0 ? null : element("p", { class: "text", dir: "auto" }, nodesOf(excerpt)),
      element("p", { class: "facts" }, scoresOf(column, hit, cosineOf(column, hit)), factsOf(hit, field)),
    );
  });
  return element("ol", { class: "hits" }, items);
}

/** Runs of text as nodes. */
const nodesOf = (runs) => runs.map(({ text, marked }) => (marked ? element("mark", {}, visible(text)) : visible(text)));

/** The hit's cosine, and the engine's own score if that is a different number. */
function scoresOf(column, hit, cosine) {
  return [
    element("span", { class: "cosine", title: COSINE_MEANING, hidden: cosine === null }, cosine === null ? "" : labeled(cosine)),
    column.score === null ? null : element("span", { class: "score", title: column.score.meaning }, `${column.score.name} ${scoreText(hit._score)}`),
  ];
}

const labeled = (cosine) => `cosine ${cosineText(cosine)}`;

/** Show the cosines of hits that have none yet. `cosines` holds them by key. */
export function addCosines(list, cosines) {
  for (const item of list.children) {
    const place = item.querySelector(".cosine");
    const cosine = cosines.get(item.dataset.key);
    if (place.hidden && cosine !== undefined) {
      place.textContent = labeled(cosine);
      place.hidden = false;
    }
  }
}

/** A hit's other fields, short ones only. */
function factsOf(hit, field) {
  const source = hit._source ?? {};
  const shown = new Set([...field.texts, ...field.hidden, titleOf(hit, field).field]);
  return Object.keys(source)
    .filter((name) => !shown.has(name))
    .map((name) => [name, valueAt(source, name)])
    .filter(([, value]) => ["string", "number", "boolean"].includes(typeof value) && `${value}`.length <= LONGEST_FACT && `${value}` !== hit._id)
    .slice(0, FACTS_SHOWN)
    .map(([name, value]) => element("span", { class: "fact", dir: "auto" }, visible(`${name}: ${typeof value === "number" ? valueText(value) : value}`)));
}
