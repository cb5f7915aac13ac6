// Texts of documents for display. Offsets count characters (code points), as Python does, not UTF-16 units.

import { HTML } from "./html.js";

// Characters that Python's str.strip() removes; JavaScript's trim() removes a slightly different set.
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const AT_THE_ENDS = new RegExp(`^${SPACE}|${SPACE}$`, "g");
const BLANK = new RegExp(`^(${SPACE})?$`);
// Control characters are invisible, or disturb the text around them; tabs and line ends are allowed.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const TITLES = ["title", "headline", "subject", "name", "label", "question"]; // TITLE_FIELDS in es_sbert/index/text_template.py
// The characters 0x80 to 0x9f, which HTML reads as those of Windows-1252.
const WINDOWS_1252 = "€\x81‚ƒ„…†‡ˆ‰Š‹Œ\x8dŽ\x8f\x90‘’“”•–—˜™š›œ\x9džŸ";
const ENTITIES = new Map(Object.entries(HTML.entities));
const SEPARATING = new Set(HTML.separating);
const NOT_SHOWN = new RegExp(`<(${HTML.hidden.join("|")})(?=[\\s/>])[^]*?(?:</\\1\\s*>|$)|<!--[^]*?(?:-->|$)`, "gi");
const TAG = /<[!?/]?([a-z][^\s/<>]*)(?=[\s/<>]|$)[^<>]*(?:>|$)/gi;

// Around words that the engine found; characters of no meaning, which are turned into elements and never shown.
export const FOUND = { before: "\ue000", after: "\ue001" };

/**
 * The value at a dotted name: a key with exactly that name, or one inside an object. `undefined` if there is none.
 *
 * A list of values without lists in it, if the name goes through a list or occurs more than once, as
 * es_sbert.index.text_template.find_field gives them.
 */
export function valueAt(source, name) {
  const found = [];
  const crossesList = collect(source, name, found);
  if (found.length === 0) return undefined;
  return crossesList || found.length > 1 ? found.flat(Infinity) : found[0];
}

/** Append the values at a dotted name; whether there is a list on the way to one of them. */
function collect(source, name, found) {
  if (source === null || typeof source !== "object" || Array.isArray(source)) return false;
  let crossesList = false;
  for (const [key, value] of Object.entries(source)) {
    if (key === name) {
      found.push(value);
    } else if (name.startsWith(`${key}.`)) {
      const rest = name.slice(key.length + 1);
      const before = found.length;
      if (!Array.isArray(value)) {
        crossesList = collect(value, rest, found) || crossesList;
      } else {
        for (const entry of value.flat(Infinity)) collect(entry, rest, found);
        crossesList ||= found.length > before;
      }
    }
  }
  return crossesList;
}

/** The strings of a value, blank ones of a list left out; null if there is no value, `undefined` if others are in it. */
function textValues(value) {
  if (typeof value === "string") return [value];
  const values = (Array.isArray(value) ? value.flat(Infinity) : [value ?? null]).filter((each) => each !== null);
  if (values.length === 0) return null;
  return values.every((each) => typeof each === "string") ? values.filter((each) => !BLANK.test(each)) : undefined;
}

/**
 * A text without what looks like tags and with its entities decoded, to read. The embedded text is that of a parser
 * (es_sbert/io/html_text.py), which the page may not use: its policy keeps documents from becoming HTML. Offsets in the
 * embedded text do not apply. The end of a text ends open tags and comments.
 */
const withoutTags = (text) =>
  text
    .replace(NOT_SHOWN, "")
    .replace(TAG, (_, name) => (SEPARATING.has(name.toLowerCase()) ? " " : ""))
    .replace(/&(?:#x([0-9a-f]+)|#([0-9]+)|[a-z][a-z0-9]*);?/gi, decoded)
    .replace(/[ \t]+/g, " ")
    .trim();

/** The character of a reference such as `&amp;`, `&#8217;` or `&#x2019;`; the reference itself if its name is unknown. */
function decoded(reference, hex, decimal) {
  if (hex === undefined && decimal === undefined) return ENTITIES.get(reference.slice(1)) ?? reference;
  const code = hex === undefined ? parseInt(decimal, 10) : parseInt(hex, 16);
  if (code >= 0x80 && code < 0xa0) return WINDOWS_1252[code - 0x80];
  return code > 0x10ffff ? "\ufffd" : String.fromCodePoint(code);
}

/** The filter that a field has in the template of the embedded text; null for none. */
export const filterIn = (field, name) => field.parts.find((part) => part[1] === name && part[2])?.[2] ?? null;

/** Apply the filter of a template to texts; if there are several, blank ones are left out. */
export function filtered(values, filter) {
  if (!values?.length || (filter ?? null) === null) return values;
  const texts = values.map(withoutTags);
  return texts.length === 1 ? texts : texts.filter((each) => !BLANK.test(each));
}

/**
 * The embedded text of a document, as es_sbert.index.text_template.TextTemplate renders it; null if it has none. Values
 * with a filter are those of `withoutTags`. `parts` are a literal, the field after it (or null), and the filter of its values (or null) each.
 */
export function embeddedText(parts, source) {
  const own = parts.map(([, field, filter]) => (field === null ? [] : filtered(textValues(valueAt(source, field)), filter)));
  const values = own.filter((_, number) => parts[number][1] !== null);
  if (values.includes(undefined) || values.every((each) => each === null)) return null;
  if (values.every((each) => each === null || each.every((value) => BLANK.test(value)))) return "";
  const text = parts.map(([literal], number) => literal + (own[number] ?? []).join("\n")).join("");
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

export const LONG_NAME = 32; // characters

/** A long name in `room` characters by its beginning, its last part with a digit and, with room for it, its end, which tell names of one family apart. */
export function shortName(name, room) {
  if (name.length <= room) return visible(name);
  const version = name.match(/[^\W_]*\d[^\W_]*/g)?.at(-1) ?? "";
  const isCut = version !== "" && version.length <= 10 && !/\d/.test(name.slice(-8));
  const end = isCut ? `${version}…${room < 22 ? "" : name.slice(-4)}` : name.slice(-8);
  return visible(`${name.slice(0, Math.max(4, room - end.length - 1))}…${end}`);
}

/** A text with its invisible control characters shown as �. */
export const visible = (text) => text.replace(CONTROLS, "\ufffd");

/**
 * The name of a document, as `{text, field}`: the value of a field for titles, or of the first of several embedded
 * fields, as it is embedded; else its id (of which `field` is null).
 */
export function titleOf(hit, field) {
  for (const name of titleFields(field)) {
    const text = filtered(textValues(valueAt(hit._source ?? {}, name)), filterIn(field, name))?.join("\n") ?? "";
    if (text.trim() !== "") return { text, field: name };
  }
  return { text: hit._id, field: null };
}

/** Fields that may hold a document's title, the likeliest first. */
export const titleFields = (field) => (field.texts.length > 1 ? [...TITLES, field.texts[0]] : TITLES);

/** A title in one line's length. */
export const titleText = (title) => visible(beginning(title.text, 150));

/**
 * How much of a text's beginning only repeats the title, in UTF-16 units: the title and what separates it from the rest.
 * A title that is only the beginning of the first sentence ("Rain" in "Rain fell") is not a repetition.
 *
 * `separator` is the text after the title in the template, if any.
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
