// Filters: the values of some fields, each with how many of the hits have it.

import { element } from "./dom.js";
import { filterOf } from "./queries.js";
import { visible } from "./text.js";

const BUCKETS_SHOWN = 24;
const DATE_LENGTH = { minute: 16, hour: 13, day: 10, month: 7, year: 4 };

/** Aggregations that count the values of all facets. */
export const aggregationsOf = (facets) =>
  Object.fromEntries(facets.map((facet, number) => [`facet_${number}`, facet.aggregation]));

/** Filters of a search for what is chosen; fields that are no facets of this index are left out. */
export const filtersOf = (facets, chosen) =>
  facets.filter(({ field }) => chosen.has(field)).map((facet) => filterOf(facet, chosen.get(facet.field)));

/** One fieldset a facet; `toggle` is called with a facet's field and a value. */
export function facetsOf(facets, aggregations, chosen, toggle) {
  return facets.map((facet, number) => {
    const values = chosen.get(facet.field) ?? [];
    const counts = countsOf(aggregations?.[`facet_${number}`]?.buckets ?? [], values);
    if (counts.size === 0) return null;
    return element(
      "fieldset",
      {},
      element("legend", {}, visible(facet.label)),
      element("ul", {}, [...counts].map(([value, count]) => element("li", {}, choice(facet, value, count, values.includes(value), toggle)))),
    );
  });
}

/** Value → how many have it. What is chosen stays, so that it can be taken back, even where no hit has it. */
function countsOf(buckets, values) {
  const counts = new Map(buckets.slice(0, BUCKETS_SHOWN).map((bucket) => [`${bucket.key_as_string ?? bucket.key}`, bucket.doc_count]));
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
    element("span", { class: "count" }, count.toLocaleString("en")),
  );
}

/** What is chosen, each with a button that takes it back; also what is no facet here, and so did not count. */
export function chosenOf(facets, chosen, toggle) {
  return [...chosen].flatMap(([field, values]) => values.map((value) => {
    const facet = facets.find((known) => known.field === field);
    const label = facet === undefined ? visible(`${field}: ${value}`) : `${visible(facet.label)}: ${labelOf(facet, value)}`;
    const remove = {
      type: "button", class: "small", "aria-label": `Remove filter ${label}`, click: () => toggle(field, value),
      "data-field": field, "data-value": value,
    };
    return element(
      "li",
      {},
      element("button", remove, element("bdi", {}, label), " ✕"),
      facet === undefined ? element("span", { class: "warning" }, " is none of the filters here, and was left out.") : null,
    );
  }));
}

/** In words, for the announcement: filters that did not count. */
export function leftOut(facets, chosen) {
  const fields = [...chosen.keys()].filter((field) => !facets.some((known) => known.field === field));
  return fields.length === 0 ? "" : ` Filters left out: ${fields.map(visible).join(", ")}.`;
}

/** A value for people. */
function labelOf(facet, value) {
  if (facet.kind === "number") {
    const from = Number(value);
    const digits = { maximumFractionDigits: Math.max(0, Math.ceil(-Math.log10(facet.interval))), useGrouping: false };
    const to = facet.whole ? from + facet.interval - 1 : from + facet.interval;
    const text = (number) => number.toLocaleString("en", digits);
    if (facet.whole && facet.interval === 1) return text(from);
    return `${text(from)} ${facet.whole ? "to" : "to under"} ${text(to)}`;
  }
  if (facet.kind === "date") return value.slice(0, DATE_LENGTH[facet.unit]).replace("T", " ");
  return visible(value);
}
