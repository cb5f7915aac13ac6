// Filters: the values of some fields, each with its number of hits.

import { element } from "./dom.js";
import { countText } from "./numbers.js";
import { visible } from "./text.js";

/** Aggregations that count the values of all facets. */
export const aggregationsOf = (facets) =>
  Object.fromEntries(facets.map((facet, number) => [`facet_${number}`, facet.aggregation]));

/** Filters for the chosen values. Fields that are not facets of this index are ignored. */
export const filtersOf = (facets, chosen) =>
  facets.filter(({ field }) => chosen.has(field)).map(({ field }) => ({ terms: { [field]: chosen.get(field) } }));

/** For each filter, the other filters, and the aggregation that counts all values of its field. */
export const othersOf = (facets, filters) => filters.map((filter) => {
  const number = facets.findIndex(({ field }) => field in filter.terms);
  return [filters.filter((other) => other !== filter), { [`others_${number}`]: facets[number].aggregation }];
});

/** One fieldset per facet; `toggle` is called with a facet's field and a value. */
export function facetsOf(facets, aggregations, chosen, toggle) {
  return facets.map((facet, number) => {
    const values = chosen.get(facet.field) ?? [];
    const [own, all] = ["facet", "others"].map((name) => aggregations?.[`${name}_${number}`]?.buckets);
    const counts = countsOf(own ?? [], values, all);
    if (counts.size === 0) return null;
    return element(
      "fieldset",
      {},
      element("legend", {}, visible(facet.label.replaceAll("_", " "))),
      element("ul", {}, [...counts].map(([value, count]) => element("li", {}, choice(facet, value, count, values.includes(value), toggle)))),
    );
  });
}

/**
 * Value → number of hits: of the chosen `values` among the hits (`own`), of the others among those without the filter (`all`).
 * Chosen values are always included, so they can be removed.
 */
function countsOf(own, values, all = own) {
  const [counts, others] = [own, all].map((buckets) => new Map(buckets.map((bucket) => [`${bucket.key_as_string ?? bucket.key}`, bucket.doc_count])));
  for (const value of values) others.set(value, counts.get(value) ?? 0);
  return others;
}

function choice(facet, value, count, isChosen, toggle) {
  const box = element("input", { type: "checkbox", change: () => toggle(facet.field, value), "data-value": value, "data-field": facet.field });
  box.checked = isChosen;
  return element(
    "label",
    {},
    box,
    element("span", { dir: "auto" }, visible(value)),
    element("span", { class: "count" }, countText(count)),
  );
}

/** The chosen values, each with a button to remove it; also those that are ignored here. */
export function chosenOf(facets, chosen, toggle) {
  return [...chosen].flatMap(([field, values]) => values.map((value) => {
    const facet = facets.find((each) => each.field === field);
    const label = visible(`${facet?.label ?? field}: ${value}`);
    const remove = {
      type: "button", "aria-label": `Remove filter ${label}`, click: () => toggle(field, value),
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
  const fields = [...chosen.keys()].filter((field) => facets.every((facet) => facet.field !== field));
  return fields.length === 0 ? "" : ` Filters ignored: ${fields.map((field) => visible(field)).join(", ")}.`;
}
