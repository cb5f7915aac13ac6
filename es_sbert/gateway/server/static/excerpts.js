// Excerpts of a hit's texts, as runs of characters: `{text, marked}`. No input or output.

import { FOUND, around, beginning, embeddedText, filterIn, repeatedTitle, titleOf, titleText } from "./text.js";

const LONGEST_TITLE = 150;

/** The title of a hit; the words found are marked. */
export function titleRuns(hit, field) {
  const title = titleOf(hit, field);
  const fragment = hit.highlight?.[title.field]?.[0];
  if (fragment !== undefined) {
    const runs = runsOf(fragment);
    // A title that is too long for one fragment is highlighted only in part, so the highlight cannot be the title.
    if (textOf(runs) === title.text && Array.from(title.text).length <= LONGEST_TITLE) return runs;
  }
  return [{ text: titleText(title), marked: false }];
}

/**
 * The part of a hit's text to read, without its title: around its best passage or the words found, which are marked,
 * else its beginning. Empty if the document has nothing but the title.
 */
export function excerptRuns(hit, field) {
  const title = titleOf(hit, field);
  const text = embeddedText(field.parts, hit._source ?? {});
  const first = text === null ? 0 : titleLength(text, title, field.parts);
  const isFiltered = (name) => filterIn(field, name) !== null;
  // Offsets of passages count characters of the embedded text, which the page does not have if it was filtered.
  const passage = field.texts.some(isFiltered) ? null : bestPassage(hit, field.name);
  if (passage !== null && text !== null) {
    const begin = Array.from(text.slice(0, first)).length; // passages count characters
    if (passage.end > begin) {
      const [before, marked, after] = around(text, Math.max(passage.start, begin), passage.end, { first: begin });
      return filled([run(before), run(marked, true), run(after)]);
    }
  }
  // The engine highlights the text with its tags.
  const name = field.texts.find((each) => each !== title.field && hit.highlight?.[each] !== undefined && !isFiltered(each));
  if (name !== undefined) {
    const runs = runsOf(hit.highlight[name][0]);
    const rest = filled(dropped(runs, titleLength(textOf(runs), title, [])));
    if (rest.length > 0) return rest;
  }
  return text === null ? [run("(the text is not in the document's _source)")] : filled(foundIn(text.slice(first), hit.highlight ?? {}));
}

/** The part of a text that has words which the engine found in the text with its tags, which are marked; else its beginning. */
function foundIn(text, highlight) {
  const found = Object.values(highlight).flatMap(([fragment]) => runsOf(fragment)).filter(({ marked }) => marked);
  if (found.length === 0) return [run(beginning(text))];
  const words = [...new Set(found.map((each) => each.text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")))];
  const word = new RegExp(`(?<![\\p{L}\\p{N}])(${words.join("|")})(?![\\p{L}\\p{N}])`, "iu");
  const at = text.search(word);
  const near = at > 200 ? `…${text.slice(at - 60).replace(/^\S*\s/u, "")}` : text;
  return filled(beginning(near).split(word).map((part, number) => run(part, number % 2 === 1)));
}

const run = (text, marked = false) => ({ text, marked });
const textOf = (runs) => runs.map(({ text }) => text).join("");
const filled = (runs) => runs.filter(({ text }) => text !== "");

/** How much of a text repeats the title: a template may put it in front of a text that begins with it again. */
function titleLength(text, title, parts) {
  const separator = parts[0]?.[1] === title.field ? parts[1]?.[0] : undefined;
  const length = repeatedTitle(text, title.text, separator);
  return length + repeatedTitle(text.slice(length), title.text);
}

/** A fragment of a highlighted text. */
function runsOf(fragment) {
  return filled(fragment.split(FOUND.before).flatMap((piece, number) => {
    if (number === 0) return [run(piece)];
    const [inside, ...outside] = piece.split(FOUND.after);
    return [run(inside, true), run(outside.join(""))];
  }));
}

/** Runs without their first characters. */
function dropped(runs, length) {
  let left = length;
  return runs.map(({ text, marked }) => {
    const cut = Math.min(left, text.length);
    left -= cut;
    return run(text.slice(cut), marked);
  });
}

function bestPassage(hit, field) {
  const best = Object.entries(hit.inner_hits ?? {}).find(([name]) => name === field || name.startsWith(`${field}_`));
  const place = best?.[1].hits.hits[0]?._source;
  return place === undefined ? null : (place[field] ?? place); // with or without the field's name around it
}
