// One column of hits.

import { element } from "./dom.js";
import { excerptRuns, titleRuns } from "./excerpts.js";
import { cosineText, countText, dateText, durationText, scoreText } from "./numbers.js";
import { COLUMNS, COSINE_MEANING, cosineOf } from "./queries.js";
import { commonWords } from "./stopwords.js";
import { beginning, titleOf, valueAt, visible } from "./text.js";

/** Identifies a hit on the whole page. */
export const keyOf = (index, id) => JSON.stringify([index, id]);

/** Number of documents that a search found, as far as the engine counted them. */
export function totalText({ hits: { total: { value, relation } } }) {
  return `${relation === "gte" ? "over " : ""}${countText(value)}`;
}

/** Number of hits, unless none of them is `counted`, and time. */
export function summaryOf({ answer, milliseconds }, counted = true) {
  const { failed } = answer._shards;
  const lost = failed > 0 ? `, ${countText(failed)} ${failed === 1 ? "shard" : "shards"} failed` : "";
  const late = answer.timed_out ? ", stopped by a timeout" : "";
  const documents = answer.hits.total.value === 1 ? "document" : "documents";
  return [counted && element("span", { class: "total" }, `${totalText(answer)} ${documents} in `), durationText(milliseconds), element("span", { class: "engine" }, ` (engine ${durationText(answer.took)})`), lost, late].filter(Boolean);
}

/** The hits as a list. */
export function listOf(column, answer, asked) {
  const { field } = asked;
  const isCommon = commonWords(asked.text);
  const items = answer.hits.hits.map((hit) => {
    const excerpt = nearMark(excerptRuns(hit, field), isCommon).map(({ text, marked }) => ({ text: text.replace(UNBROKEN, "$1…"), marked }));
    const cosine = cosineOf(column, hit);
    return element(
      "li",
      { tabindex: "-1", "data-key": keyOf(hit._index, hit._id), class: cosine !== null && cosine < field.min_cosine ? "below" : null },
      element("h4", { dir: "auto" }, nodesOf(titleRuns(hit, field), isCommon)),
      excerpt.length === 0 ? null : element("p", { class: "text", dir: "auto" }, nodesOf(excerpt, isCommon)),
      element("p", { class: "scores" }, element("span", {}, scoresOf(column, hit, cosine)), element("span", { class: "elsewhere" })),
      element("p", { class: "facts" }, factsOf(hit, asked).map((fact, number) => element("span", {}, number > 0 ? " · " : "", factOf(fact)))),
    );
  });
  return element("ol", { class: "hits" }, items);
}

const UNBROKEN = /([!-~]{36})[!-~]{24,}/g; // an address, for example

/** Runs with little text before the first mark of a word that is not common: the style shows their first lines only. */
function nearMark(runs, isCommon, most = 60) {
  const at = Math.max(0, runs.findIndex(({ text, marked }) => marked && !isCommon(text)));
  const before = runs.slice(0, at).map(({ text }) => text).join("");
  if (before.length <= most) return runs;
  const lead = before.slice(-most);
  return [{ text: `…${lead.slice(lead.indexOf(" ") + 1)}`, marked: false }, ...runs.slice(at)];
}

/** Runs of text as nodes. */
const nodesOf = (runs, isCommon) => runs.map(({ text, marked }) => (marked ? element("mark", { class: isCommon(text) ? "common" : null }, visible(text)) : visible(text)));

/** The score that ranks the list, and the hit's cosine if that is a different number. */
function scoresOf(column, hit, cosine) {
  return [
    column.score === null ? null : element("span", { class: "score ranking", title: column.score.meaning }, `${column.score.name} ${scoreText(hit._score)}`),
    element("span", { class: column.score === null ? "cosine ranking" : "cosine", title: COSINE_MEANING, hidden: cosine === null }, cosine === null ? "" : labeled(cosine)),
  ];
}

/** Show the places in the hybrid list of the hits of the other lists, and the places in these of hybrid hits. */
export function addPlaces() {
  const itemsOf = (name) => [...document.querySelectorAll(`[data-name="${name}"] .hits > li`)];
  const lists = COLUMNS.map(({ name, heading }) => [name, heading, itemsOf(name).filter(({ classList }) => !classList.contains("below")).map(({ dataset }) => dataset.key)]);
  for (const [own] of lists) {
    const others = lists.filter(([name]) => name !== own && (own === "hybrid" || name === "hybrid"));
    for (const item of itemsOf(own)) {
      const places = others.map(([, heading, keys]) => [heading, keys.indexOf(item.dataset.key) + 1]).filter(([, place]) => place > 0);
      item.querySelector(".elsewhere").replaceChildren(...places.map(([heading, place], number) => element("span", {}, `${number > 0 ? " · " : ""}${heading} #${place}`)));
    }
  }
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
const MOST_FACTS = 4;
const LONGEST_VALUE = 40;
const PEOPLE =
  /(?:^|[._-])(?:author|creator|editor|reporter|assignee|owner|person|people|user|customer|contact|sender|recipient|(?:first|last|full|given|family)(?=[._-]?name)|e?mail|phone)s?(?:[._-]?(?:e?mail|name|phone))?$|[._-]by$/i;

/**
 * Fields that tell hits apart, as pairs of name and text, those that say most first: a date, a flag that is set (its text
 * is empty), and those with few different values. Names of people, plain numbers and empty values are left out.
 */
export function factsOf(hit, { field, facets }) {
  const source = hit._source ?? {};
  const shown = new Set([...field.texts, ...field.hidden, titleOf(hit, field).field]);
  const labels = facets.map(({ label }) => label).filter((label) => !shown.has(label) && !PEOPLE.test(label));
  const values = labels.map((label) => [label, valueText(valueAt(source, label))]).filter(([, text]) => text !== "");
  const flags = labels.filter((label) => valueAt(source, label) === true).map((label) => [label, ""]);
  const dates = Object.keys(source).map((name) => [name, dateText(source[name])]).filter(([name, text]) => text !== null && !shown.has(name));
  const [date, flag] = [dates.slice(0, 1), flags.slice(0, 1)];
  // Of fields with few values, those with more of them say more.
  return [...date, ...flag, ...values.slice(0, MOST_VALUES).slice(date.length + flag.length - MOST_FACTS).reverse()];
}

/** The texts of a value on one line; empty without a letter in it. */
function valueText(value) {
  const texts = [value].flat(Infinity).filter((each) => typeof each === "string" && /\p{L}/u.test(each));
  return beginning(texts.slice(0, MOST_VALUES).join(", ").trim(), LONGEST_VALUE);
}

/** The value alone; its name is for screen readers and the pointer. */
function factOf([name, text]) {
  const label = visible(name.replaceAll("_", " "));
  return text === "" ? label : element("bdi", { title: label }, element("span", { class: "unseen" }, `${label} `), visible(text));
}
