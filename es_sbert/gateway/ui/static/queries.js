// What each column asks, as any caller of the gateway would write it. No input or output.

import { FOUND } from "./text.js";

export const PAGE = 10;

export const COLUMNS = [
  { name: "lexical", heading: "Lexical", note: "Words that query and document share (BM25).", mode: "off" },
  { name: "semantic", heading: "Semantic", note: "Documents nearest in meaning.", mode: "on" },
  { name: "hybrid", heading: "Hybrid", note: "Both scores added: words find, meaning finds.", mode: "on" },
];
export const LIKE = { name: "like", heading: "More like this", note: "Documents nearest to that one.", mode: "off" };

/**
 * The body of a column's search.
 *
 * `asked` holds the `text`, the vector `field` as the gateway describes it, the `filters` that all hits match, how many
 * hits (`size`), and from the gateway's settings `k`, `weight` and what limits `highlight`.
 */
export function bodyOf(column, asked, aggregations = {}) {
  const body = { ...framed(queryOf(column, asked), asked), ...highlighted(column, asked) };
  return Object.keys(aggregations).length === 0 ? body : { ...body, aggs: aggregations };
}

/** A search body around any query. */
export function framed(query, { field, size }) {
  return { query, size, _source: { excludes: field.hidden } };
}

function queryOf(column, { text, field, filters, k, weight, size }) {
  const words = { query: text, fields: field.texts };
  const near = { query: text, k: Math.max(k, size) };
  const beside = filters.length === 0 ? {} : { filter: filters };
  if (column.name === "hybrid") {
    const should = [
      { multi_match: { ...words, _name: "lexical" } },
      { match: { [field.semantic]: { ...near, boost: weight, _name: "semantic" } } },
    ];
    return { bool: { should, minimum_should_match: 1, ...beside } };
  }
  const query = column.name === "lexical" ? { multi_match: words } : { match: { [field.semantic]: near } };
  return filters.length === 0 ? query : { bool: { must: [query], ...beside } };
}

function highlighted(column, { field, highlight }) {
  if (column.name === "semantic") return {};
  const options = { number_of_fragments: 1, fragment_size: 300 };
  const fields = Object.fromEntries(field.texts.map((name) => [name, options]));
  return { highlight: { ...highlight, pre_tags: [FOUND.before], post_tags: [FOUND.after], fields } };
}

/** A hit's cosine where its scores tell it, else null. */
export function cosineOf(column, hit, weight) {
  const cosine = (score) => Math.min(1, Math.max(-1, 2 * score - 1)); // the engines score (1 + cosine) / 2
  if (column.name === "semantic" || column.name === "like") return cosine(hit._score);
  const named = hit.matched_queries; // an object of scores where the engine gives them, else a list of names
  return typeof named?.semantic === "number" ? cosine(named.semantic / weight) : null;
}

/** The query that keeps the hits with one of these values of a facet. */
export function filterOf(facet, values) {
  const should = values.map((value) => valueFilter(facet, value));
  return should.length === 1 ? should[0] : { bool: { should, minimum_should_match: 1 } };
}

const MATH = { minute: "m", hour: "h", day: "d", month: "M", year: "y" };

function valueFilter({ field, kind, interval, unit }, value) {
  if (kind === "terms") return { term: { [field]: value } };
  if (kind === "number") return { range: { [field]: { gte: Number(value), lt: Number(value) + interval } } };
  return { range: { [field]: { gte: value, lt: `${value}||+1${MATH[unit]}`, format: "strict_date_time" } } };
}
