// The search, kept in the page's address so that it can be linked and the back button works.

/**
 * The search that an address asks for: `query`, `index`, `field`, and `chosen` (field of a facet → its values that
 * are chosen).
 */
export function readState(search) {
  const given = new URLSearchParams(search);
  const chosen = new Map();
  for (const [name, value] of given) {
    if (name.startsWith("f.")) chosen.set(name.slice(2), [...(chosen.get(name.slice(2)) ?? []), value]);
  }
  return {
    query: given.get("q") ?? "",
    index: given.get("index") ?? "",
    field: given.get("field") ?? "",
    chosen,
  };
}

/** The inverse. */
export function writeState({ query, index, field, chosen }) {
  const written = new URLSearchParams();
  const put = (name, value) => value && written.append(name, value);
  put("q", query);
  put("index", index);
  put("field", field);
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
