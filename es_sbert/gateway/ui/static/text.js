// Texts of documents as people see them. Offsets count characters (code points), as Python does, not UTF-16 units.

// What Python's str.strip() takes away; JavaScript's own trim() knows a slightly different set.
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const AT_THE_ENDS = new RegExp(`^${SPACE}|${SPACE}$`, "g");
// Control characters draw nothing, or upset what stands around them; tabs and line ends may stay.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const TITLES = ["title", "name", "headline", "subject"];

// Around words that the engine found; characters of no meaning, which are turned into elements and never shown.
export const FOUND = { before: "\ue000", after: "\ue001" };

/** The value at a dotted name: a key of that very name, or one inside an object. `undefined` where there is none. */
export function valueAt(source, name) {
  if (source === null || typeof source !== "object") return undefined;
  if (Object.hasOwn(source, name)) return source[name];
  for (let dot = name.indexOf("."); dot !== -1; dot = name.indexOf(".", dot + 1)) {
    const inner = source[name.slice(0, dot)];
    if (inner === null || typeof inner !== "object" || Array.isArray(inner)) continue;
    const value = valueAt(inner, name.slice(dot + 1));
    if (value !== undefined) return value;
  }
  return undefined;
}

/**
 * The text of a document that was embedded, as es_sbert.index.text.TextTemplate renders it; null where it has none.
 * `parts` are pairs of a literal and the field behind it (or null).
 */
export function embeddedText(parts, source) {
  const fields = parts.filter(([, field]) => field !== null);
  const values = fields.map(([, field]) => valueAt(source, field) ?? null);
  if (values.some((value) => value !== null && typeof value !== "string") || values.every((value) => value === null)) {
    return null;
  }
  if (values.every((value) => !value)) return "";
  const text = parts.map(([literal, field]) => literal + (field === null ? "" : valueAt(source, field) ?? "")).join("");
  return values.includes(null) ? text.replace(AT_THE_ENDS, "") : text;
}

/** A part of a text with what stands before and behind it: `[before, part, behind]`, cut to a readable length. */
export function around(text, start, end, context = 120, longest = 1200) {
  const characters = Array.from(text);
  const from = Math.max(0, start - context);
  const to = Math.min(characters.length, end + context);
  const join = (first, last) => characters.slice(first, last).join("");
  const cut = Math.min(end, start + longest);
  return [
    (from > 0 ? "…" : "") + join(from, start),
    join(start, cut) + (cut < end ? "…" : ""),
    cut < end ? "" : join(end, to) + (to < characters.length ? "…" : ""),
  ];
}

/** The beginning of a text. */
export function beginning(text, longest = 300) {
  const characters = Array.from(text);
  return characters.length <= longest ? text : `${characters.slice(0, longest).join("")}…`;
}

/** A text without characters that nobody can see. */
export const visible = (text) => text.replace(CONTROLS, "\ufffd");

/** What a document is called: a title of its own, the first of several embedded fields, or its id. */
export function titleOf(hit, field) {
  const names = field.texts.length > 1 ? [...TITLES, field.texts[0]] : TITLES;
  const values = names.map((name) => valueAt(hit._source ?? {}, name));
  return beginning(values.find((value) => typeof value === "string" && value.trim()) ?? hit._id, 150);
}
