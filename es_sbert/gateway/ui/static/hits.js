// One column of hits.

import { element } from "./dom.js";
import { cosineOf } from "./queries.js";
import { FOUND, around, beginning, embeddedText, titleOf, valueAt, visible } from "./text.js";

const milliseconds = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FACTS_SHOWN = 6;

/** By what a hit is known on the whole page. */
export const keyOf = (index, id) => JSON.stringify([index, id]);

/** A hit's item in the list of a column, by which the map finds it. */
export const itemId = (column, position) => `${column.name}-${position}`;

/** How many were found, how fast. */
export function summaryOf({ answer, milliseconds: elapsed }) {
  const { value, relation } = answer.hits.total;
  const total = `${relation === "gte" ? "over " : ""}${value.toLocaleString("en")}`;
  const lost = answer._shards.failed > 0 ? `, ${answer._shards.failed} shards failed` : "";
  const late = answer.timed_out ? ", cut off by a time-out" : "";
  return `${total} ${value === 1 ? "document" : "documents"} in ${milliseconds.format(elapsed)} ms (engine ${answer.took} ms)${lost}${late}`;
}

/** The hits as a list; `more` is called with a hit when documents like it are wanted. */
export function listOf(column, answer, { field, weight }, more) {
  const items = answer.hits.hits.map((hit, position) => {
    const title = visible(titleOf(hit, field));
    const cosine = cosineOf(column, hit, weight);
    return element(
      "li",
      { id: itemId(column, position), tabindex: "-1", "data-key": keyOf(hit._index, hit._id) },
      element("h4", { dir: "auto" }, title),
      element("p", { class: "text", dir: "auto" }, textOf(hit, field)),
      element(
        "p",
        { class: "facts" },
        element("span", { class: "cosine", hidden: cosine === null }, cosine === null ? "" : written(cosine)),
        element("span", {}, `score ${hit._score.toPrecision(4)}`),
        factsOf(hit, field),
      ),
      element("button", { type: "button", class: "small", "aria-label": `More like ${title}`, click: () => more(hit) }, "More like this"),
    );
  });
  return element("ol", { class: "hits" }, items);
}

const written = (cosine) => `cosine ${cosine.toFixed(3)}`;

/** Write cosines that only the map knows: of hits that words alone have found. */
export function addCosines(list, cosines) {
  for (const item of list.children) {
    const place = item.querySelector(".cosine");
    const cosine = cosines.get(item.dataset.key);
    if (place.hidden && cosine !== undefined) {
      place.textContent = written(cosine);
      place.hidden = false;
    }
  }
}

/** The part of a hit's text to read, as nodes: its best passage or the words found are marked. */
function textOf(hit, field) {
  const text = embeddedText(field.parts, hit._source ?? {});
  const passage = bestPassage(hit, field.name);
  if (passage !== null && text !== null) {
    const [before, marked, behind] = around(text, passage.start, passage.end);
    return [visible(before), element("mark", {}, visible(marked)), visible(behind)];
  }
  const fragment = Object.values(hit.highlight ?? {}).map((fragments) => fragments[0]).at(-1);
  if (fragment !== undefined) return marks(fragment);
  return [text === null ? "(the text is not part of the document's source)" : visible(beginning(text))];
}

function bestPassage(hit, field) {
  const best = Object.entries(hit.inner_hits ?? {}).find(([name]) => name === field || name.startsWith(`${field}_`));
  const place = best?.[1].hits.hits[0]?._source;
  return place === undefined ? null : (place[field] ?? place); // engines differ in what stands around it
}

function marks(fragment) {
  return fragment.split(FOUND.before).flatMap((piece, number) => {
    if (number === 0) return [visible(piece)];
    const [inside, ...outside] = piece.split(FOUND.after);
    return [element("mark", {}, visible(inside)), visible(outside.join(""))];
  });
}

/** A hit's other fields, short ones only. */
function factsOf(hit, field) {
  const source = hit._source ?? {};
  return Object.keys(source)
    .filter((name) => !field.texts.includes(name) && !field.hidden.includes(name))
    .map((name) => [name, valueAt(source, name)])
    .filter(([, value]) => ["string", "number", "boolean"].includes(typeof value) && `${value}`.length <= 60 && `${value}` !== hit._id)
    .slice(0, FACTS_SHOWN)
    .map(([name, value]) => element("span", { class: "fact", dir: "auto" }, visible(`${name}: ${value}`)));
}
