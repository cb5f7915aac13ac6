// The search, kept in the page's address so that it can be linked and the back button works.

/**
 * The search that an address asks for: `query`, `index`, `field`, `like` (a document's index and id, or null) and
 * `chosen` (field of a facet → its values that are chosen).
 */
export function readState(search) {
  const given = new URLSearchParams(search);
  const chosen = new Map();
  for (const [name, value] of given) {
    if (name.startsWith("f.")) chosen.set(name.slice(2), [...(chosen.get(name.slice(2)) ?? []), value]);
  }
  const id = given.get("like");
  return {
    query: given.get("q") ?? "",
    index: given.get("index") ?? "",
    field: given.get("field") ?? "",
    like: id === null ? null : { index: given.get("in") ?? "", id },
    chosen,
  };
}

/** The inverse. */
export function writeState({ query, index, field, like, chosen }) {
  const written = new URLSearchParams();
  const put = (name, value) => value && written.append(name, value);
  put("q", query);
  put("index", index);
  put("field", field);
  if (like !== null) {
    written.append("like", like.id);
    put("in", like.index);
  }
  for (const [name, values] of chosen) for (const value of values) written.append(`f.${name}`, value);
  return `?${written}`;
}

/** The same search with a facet's value added or removed. */
export function toggled(state, facet, value) {
  const values = state.chosen.get(facet) ?? [];
  const left = values.includes(value) ? values.filter((other) => other !== value) : [...values, value];
  const chosen = new Map(state.chosen);
  if (left.length === 0) chosen.delete(facet);
  else chosen.set(facet, left);
  return { ...state, chosen };
}
