// Texts of documents as people see them. Offsets count characters (code points), as Python does, not UTF-16 units.

// What Python's str.strip() takes away; JavaScript's own trim() knows a slightly different set.
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const AT_THE_ENDS = new RegExp(`^${SPACE}|${SPACE}$`, "g");
const BLANK = new RegExp(`^(${SPACE})?$`);
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
 * The embedded text of a document, as es_sbert.index.text_template.TextTemplate renders it; null if it has none.
 * `parts` are pairs of a literal and the field after it (or null).
 */
export function embeddedText(parts, source) {
  const fields = parts.filter(([, field]) => field !== null);
  const values = fields.map(([, field]) => valueAt(source, field) ?? null);
  if (values.some((value) => value !== null && typeof value !== "string") || values.every((value) => value === null)) {
    return null;
  }
  if (values.every((value) => value === null || BLANK.test(value))) return "";
  const text = parts.map(([literal, field]) => literal + (field === null ? "" : valueAt(source, field) ?? "")).join("");
  return values.includes(null) ? text.replace(AT_THE_ENDS, "") : text;
}

/**
 * A part of a text with its context: `[before, part, after]`, cut to a readable length.
 *
 * `start` and `end` are the part's, `first` is where the text to read begins.
 */
export function around(text, start, end, { first = 0, context = 120, longest = 1200 } = {}) {
  const characters = Array.from(text);
  const from = Math.max(first, start - context);
  const to = Math.min(characters.length, end + context);
  const join = (left, right) => characters.slice(left, right).join("");
  const cut = Math.min(end, start + longest);
  return [
    (from > first ? "…" : "") + join(from, start),
    join(start, cut) + (cut < end ? "…" : ""),
    cut < end ? "" : join(end, to) + (to < characters.length ? "…" : ""),
  ];
}

/** The beginning of a text. */
export function beginning(text, longest = 300) {
  const characters = Array.from(text);
  return characters.length <= longest ? text : `${characters.slice(0, longest).join("")}…`;
}

/** A text with its invisible control characters shown as �. */
export const visible = (text) => text.replace(CONTROLS, "\ufffd");

/**
 * What a document is called, as `{text, field}`: the value of a field for titles, or of the first of several embedded
 * fields, else its id (of which `field` is null).
 */
export function titleOf(hit, field) {
  for (const name of titleFields(field)) {
    const value = valueAt(hit._source ?? {}, name);
    if (typeof value === "string" && value.trim() !== "") return { text: value, field: name };
  }
  return { text: hit._id, field: null };
}

/** Fields that may hold a document's title, the likeliest first. */
export const titleFields = (field) => (field.texts.length > 1 ? [...TITLES, field.texts[0]] : TITLES);

/** A title in one line's length. */
export const titleText = (title) => visible(beginning(title.text, 150));

/**
 * How much of a text's beginning only repeats the title, in UTF-16 units: the title and what separates it from the rest.
 * A title that the first sentence merely begins with ("Rain" in "Rain fell") is no repetition.
 *
 * `separator` is what follows the title in the template of the text, where it does so.
 */
export function repeatedTitle(text, title, separator = "") {
  const words = title.trim().split(/\s+/u).map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  if (words[0] === "") return 0;
  const found = new RegExp(`^\\s*${words.join("\\s+")}`, "iu").exec(text);
  if (found === null) return 0;
  const rest = text.slice(found[0].length);
  const isEnded = /[.!?:…。！？]$/u.test(title.trim()) ? /^(?:\s|$)/u : /^\s*(?:$|\n|[.!?:;|…。！？：–—]|[-·]\s|\s[-·]\s)/u;
  const isSeparated = separator !== "" && rest.startsWith(separator);
  if (!isSeparated && !isEnded.test(rest)) return 0;
  const gap = /^(?:\s|[.!?:;|…。！？：–—·]|-(?=\s))*/u.exec(isSeparated ? rest.slice(separator.length) : rest)[0].length;
  return found[0].length + (isSeparated ? separator.length : 0) + gap;
}
