// Example queries, made from the documents of an index. No input or output.

import { filterIn, filtered, repeatedTitle, titleOf } from "./text.js";

const MOST = 5;
const LONGEST = 80;
const FEWEST_WORDS = 3;
// Control characters, and those that reverse the direction of a text.
const UNREADABLE = /[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\s]+/g;
const ENDING = /[\s.。…:;,–—-]+$/u;

/**
 * Up to five queries, each the title of a document, or the first sentence of one that has none; "…" ends one that was cut.
 *
 * `hits` have the fields for titles in `_source`, and the beginnings of their texts in `highlight`. Single words come
 * last: a sentence shows better what semantic search is for.
 */
export function exampleQueries(hits, field) {
  const queries = new Map();
  for (const hit of hits) {
    const query = queryOf(hit, field);
    if (/\p{L}/u.test(query)) queries.set(query.toLowerCase(), query);
  }
  const words = (query) => query.split(" ").length;
  const all = [...queries.values()];
  return [...all.filter((query) => words(query) >= FEWEST_WORDS), ...all.filter((query) => words(query) < FEWEST_WORDS)].slice(0, MOST);
}

function queryOf(hit, field) {
  const title = titleOf(hit, field);
  if (title.field !== null) return readable(title.text);
  const name = field.texts.find((each) => hit.highlight?.[each] !== undefined);
  const [text] = name === undefined ? [""] : filtered(hit.highlight[name].slice(0, 1), filterIn(field, name));
  return readable(firstSentence(text.slice(repeatedTitle(text, title.text))));
}

function firstSentence(text) {
  const [first] = new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(text.trimStart());
  return first?.segment ?? "";
}

/** On one line, cut between words if it is too long for a query. */
function readable(text) {
  const line = text.replace(UNREADABLE, " ").trim();
  const characters = Array.from(line);
  if (characters.length <= LONGEST) return line.replace(ENDING, "");
  const cut = characters.slice(0, LONGEST + 1).join("");
  const space = cut.lastIndexOf(" ");
  return `${(space > 0 ? cut.slice(0, space) : characters.slice(0, LONGEST).join("")).replace(ENDING, "")}…`;
}
