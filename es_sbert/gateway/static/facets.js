// Filters: the values of some fields, each with its number of hits.

import { element } from "./dom.js";
import { countText, valueText } from "./numbers.js";
import { boundsOf, filterOf, isValueOf } from "./queries.js";
import { visible } from "./text.js";

/** Aggregations that count the values of all facets. */
export const aggregationsOf = (facets) =>
  Object.fromEntries(facets.map((facet, number) => [`facet_${number}`, facet.aggregation]));

/** Filters for the chosen values. Fields that are not facets of this index, and invalid values, are ignored. */
export const filtersOf = (facets, chosen) => facets.flatMap((facet) => {
  const values = (chosen.get(facet.field) ?? []).filter((value) => isValueOf(facet, value));
  return values.length === 0 ? [] : [filterOf(facet, values)];
});

/** One fieldset per facet; `toggle` is called with a facet's field and a value. */
export function facetsOf(facets, aggregations, chosen, toggle) {
  return facets.map((facet, number) => {
    const values = (chosen.get(facet.field) ?? []).filter((value) => isValueOf(facet, value));
    const counts = countsOf(facet, aggregations?.[`facet_${number}`]?.buckets ?? [], values);
    if (counts.size === 0) return null;
    return element(
      "fieldset",
      {},
      element("legend", {}, visible(facet.label)),
      element("ul", {}, [...counts].map(([value, count]) => element("li", {}, choice(facet, value, count, values.includes(value), toggle)))),
    );
  });
}

/** Value → number of hits, dates with the newest first. Chosen values are always included, so they can be removed. */
function countsOf(facet, buckets, values) {
  const ordered = facet.kind === "date" ? buckets.toReversed() : buckets;
  const filled = ordered.filter((bucket) => bucket.doc_count > 0);
  const counts = new Map(filled.map((bucket) => [`${bucket.to === undefined && bucket.from === undefined ? bucket.key_as_string ?? bucket.key : bucket.key}`, bucket.doc_count]));
  for (const value of values) if (!counts.has(value)) counts.set(value, 0);
  return counts;
}

function choice(facet, value, count, isChosen, toggle) {
  const box = element("input", { type: "checkbox", change: () => toggle(facet.field, value), "data-value": value, "data-field": facet.field });
  box.checked = isChosen;
  return element(
    "label",
    {},
    box,
    element("span", { dir: "auto" }, labelOf(facet, value)),
    element("span", { class: "count" }, countText(count)),
  );
}

/** The chosen values, each with a button to remove it; also those that are ignored here. */
export function chosenOf(facets, chosen, toggle) {
  return [...chosen].flatMap(([field, values]) => values.map((value) => {
    const facet = facetOf(facets, field, value);
    const label = facet === undefined ? visible(`${field}: ${value}`) : `${visible(facet.label)}: ${labelOf(facet, value)}`;
    const remove = {
      type: "button", class: "small", "aria-label": `Remove filter ${label}`, click: () => toggle(field, value),
      "data-field": field, "data-value": value,
    };
    return element(
      "li",
      {},
      element("button", remove, element("bdi", {}, label), " ✕"),
      facet === undefined ? element("span", { class: "warning" }, " ignored: not a filter of this index") : null,
    );
  }));
}

/** The ignored filters, for the announcement. */
export function ignored(facets, chosen) {
  const fields = [...chosen].filter(([field, values]) => values.some((value) => facetOf(facets, field, value) === undefined));
  return fields.length === 0 ? "" : ` Filters ignored: ${fields.map(([field]) => visible(field)).join(", ")}.`;
}

const facetOf = (facets, field, value) => facets.find((facet) => facet.field === field && isValueOf(facet, value));

/** A value for display. */
export function labelOf(facet, value) {
  const bounds = boundsOf(facet, value);
  if (facet.kind === "number") return bounds === null ? valueText(Number(value)) : spanOfNumbers(facet, bounds);
  if (facet.kind === "date") return bounds === null ? timeText(value) : spanOfTime(bounds);
  return visible(value);
}

function spanOfNumbers({ whole }, { from, to }) {
  const [least, end] = [from, to].map((bound) => (bound === null ? null : Number(bound)));
  const last = whole && end !== null ? end - 1 : end;
  if (least === null) return `${whole ? "up to" : "under"} ${valueText(last)}`;
  if (end === null) return `${valueText(least)} and up`;
  if (least === last) return valueText(least);
  return `${valueText(least)} ${whole ? "to" : "to under"} ${valueText(last)}`;
}

const MIDNIGHT = "T00:00:00.000Z";
const LENGTHS = { year: 4, month: 7, day: 10, minute: 16 }; // of an ISO date down to that unit

const timeText = (time) => (time.endsWith(MIDNIGHT) ? time.slice(0, LENGTHS.day) : time.slice(0, LENGTHS.minute).replace("T", " "));

/** A span of time in the largest unit that both ends are multiples of; its last one included. */
function spanOfTime({ from, to }) {
  const ends = [from, to].filter((end) => end !== null);
  const isWhole = (ending) => ends.every((end) => end.endsWith(ending));
  const unit = isWhole(`-01-01${MIDNIGHT}`) ? "year" : isWhole(`-01${MIDNIGHT}`) ? "month" : isWhole(MIDNIGHT) ? "day" : "minute";
  const text = (time) => time.slice(0, LENGTHS[unit]).replace("T", " ");
  if (from === null) return `before ${text(to)}`;
  if (to === null) return `${text(from)} or later`;
  const last = text(new Date(Date.parse(to) - 1).toISOString());
  return text(from) === last ? last : `${text(from)} to ${last}`;
}
