// The query of each column, in the form for any client of the gateway. No input or output.

import { FOUND, titleFields } from "./text.js";

export const PAGE = 10;
export const COSINE_MEANING = "Cosine similarity of the vectors: 1 is the closest, 0 unrelated. Comparable between searches.";

// In the order of the page; phones show the first part of a `note`, and what is in stars looks like the marks of hits; `score` explains the engine's own score if it differs from the cosine.
export const COLUMNS = [
  {
    name: "semantic", heading: "Semantic", mode: "on", score: null,
    note: ["Closest in meaning", ", by cosine (at most 1)"],
  },
  {
    name: "lexical", heading: "Lexical", mode: "off",
    note: ["Best *word matches*", ", *common ones* fainter"],
    score: { name: "BM25", meaning: "How well the words match. It has no upper bound and compares within one search only." },
  },
  {
    name: "hybrid", heading: "Hybrid", mode: "hybrid",
    note: ["Both rankings combined", ""],
    score: { name: "score", meaning: "Computed from the ranks in both searches. It compares within one search only." },
  },
];

/**
 * The body of a column's search.
 *
 * `asked` holds the `text`, the vector `field` as the gateway describes it, the `filters` that all hits match, how many
 * hits (`size`), and from the gateway's settings `k` and what limits `highlight`.
 */
export function bodyOf(column, asked, aggregations = {}) {
  const query = queryOf(column, asked);
  const body = { query, size: asked.size, _source: { excludes: asked.field.hidden }, ...highlighted(column, asked) };
  return Object.keys(aggregations).length === 0 ? body : { ...body, aggs: aggregations };
}

function queryOf(column, { text, field, filters, k, size, unlimited = false }) {
  const words = { query: text, fields: field.texts };
  const near = { query: text, k: Math.max(k, size), ...(unlimited ? { min_cosine: -1 } : {}) };
  const query = column.name === "semantic" ? { match: { [field.semantic]: near } } : { multi_match: words };
  return filters.length === 0 ? query : { bool: { must: [query], filter: filters } };
}

const MOST_NEAR = 3;

/** The body of a search for the nearest documents at any cosine; `aggs` count their facets. */
export function nearestBody({ text, field, filters }, aggs) {
  const near = { match: { [field.semantic]: { query: text, k: MOST_NEAR, min_cosine: -1 } } };
  return { query: { bool: { must: [near], filter: filters } }, size: MOST_NEAR, _source: { excludes: field.hidden }, aggs };
}

const LARGEST_K = 10_000; // of the engines

/** The body of a search for the cosines of these hits, at any minimum cosine that the gateway has. */
export function cosinesBody({ text, field }, hits) {
  const [ids, indices] = ["_id", "_index"].map((name) => [...new Set(hits.map((hit) => hit[name]))]);
  const size = Math.min(LARGEST_K, ids.length * indices.length);
  const near = { match: { [field.semantic]: { query: text, k: size, min_cosine: -1 } } };
  const filter = [{ ids: { values: ids } }, { terms: { _index: indices } }];
  return { query: { bool: { must: [near], filter } }, size, _source: false };
}

function highlighted(column, { field, highlight }) {
  if (column.name === "semantic") return {};
  const options = { number_of_fragments: 1, fragment_size: 300 };
  const fields = Object.fromEntries(field.texts.map((name) => [name, options]));
  return { highlight: { ...highlight, pre_tags: [FOUND.before], post_tags: [FOUND.after], fields } };
}

/** The body of a search that counts an index's documents, and those with a vector. */
export function countBody(field) {
  return { size: 0, track_total_hits: true, aggs: { embedded: { filter: embedded(field) } } };
}

// A random choice among this many documents per shard, so that a large index is not read completely.
const MOST_CHOSEN_FROM = 10_000;

/** The body of a search for random documents with a vector: their titles, and the beginnings of their texts. */
export function sampleBody(field, highlight, size) {
  const options = { number_of_fragments: 1, no_match_size: 200 };
  return {
    size,
    terminate_after: MOST_CHOSEN_FROM,
    query: { function_score: { query: embedded(field), random_score: {}, boost_mode: "replace" } },
    _source: { includes: titleFields(field) },
    highlight: { ...highlight, fields: Object.fromEntries(field.texts.map((name) => [name, options])) },
  };
}

/** Documents with a vector: passages keep theirs in nested documents, and all keep an object next to it. */
const embedded = (field) => ({ exists: { field: field.meta } });

/** A hit's cosine if its score is one, else null. */
export function cosineOf(column, hit) {
  if (column.name !== "semantic") return null;
  return Math.min(1, Math.max(-1, 2 * hit._score - 1)); // the engines score (1 + cosine) / 2
}
