// One column of hits.

import { element } from "./dom.js";
import { excerptRuns, titleRuns } from "./excerpts.js";
import { cosineText, countText, dateText, durationText, scoreText } from "./numbers.js";
import { COSINE_MEANING, cosineOf } from "./queries.js";
import { beginning, titleOf, valueAt, visible } from "./text.js";

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
export function listOf(column, answer, asked) {
  const { field } = asked;
  const items = answer.hits.hits.map((hit) => {
    const excerpt = excerptRuns(hit, field);
    return element(
      "li",
      { tabindex: "-1", "data-key": keyOf(hit._index, hit._id) },
      element("h4", { dir: "auto" }, nodesOf(titleRuns(hit, field))),
      excerpt.length === 0 ? null : element("p", { class: "text", dir: "auto" }, nodesOf(excerpt)),
      element("p", { class: "facts" }, element("span", { class: "scores" }, scoresOf(column, hit, cosineOf(column, hit))), factsOf(hit, asked).map((fact) => [" ", factOf(fact)])),
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

const MOST_VALUES = 4;
const MOST_FLAGS = 2;
const MOST_DATES = 2;
const LONGEST_VALUE = 40;
const PEOPLE =
  /(?:^|[._-])(?:author|creator|editor|reporter|assignee|owner|person|people|user|customer|contact|sender|recipient|(?:first|last|full|given|family)(?=[._-]?name)|e?mail|phone)s?(?:[._-]?(?:e?mail|name|phone))?$|[._-]by$/i;

/**
 * Fields that tell hits apart, as pairs of name and text: those with few different values, flags that are set (their text
 * is empty) and dates. Names of people, plain numbers and empty values are left out.
 */
export function factsOf(hit, { field, facets }) {
  const source = hit._source ?? {};
  const shown = new Set([...field.texts, ...field.hidden, titleOf(hit, field).field]);
  const labels = facets.map(({ label }) => label).filter((label) => !shown.has(label) && !PEOPLE.test(label));
  const values = labels.map((label) => [label, valueText(valueAt(source, label))]).filter(([, text]) => text !== "");
  const flags = labels.filter((label) => valueAt(source, label) === true).map((label) => [label, ""]);
  const dates = Object.keys(source).map((name) => [name, dateText(source[name])]).filter(([name, text]) => text !== null && !shown.has(name));
  return [...values.slice(0, MOST_VALUES), ...flags.slice(0, MOST_FLAGS), ...dates.slice(0, MOST_DATES)];
}

/** The texts of a value on one line; empty without a letter in it. */
function valueText(value) {
  const texts = [value].flat(Infinity).filter((each) => typeof each === "string" && /\p{L}/u.test(each));
  return beginning(texts.slice(0, MOST_VALUES).join(", ").trim(), LONGEST_VALUE);
}

const factOf = ([name, text]) =>
  element("span", { class: "fact" }, element("span", { class: "name" }, visible(name)), text === "" ? null : [" ", element("bdi", {}, visible(text))]);
