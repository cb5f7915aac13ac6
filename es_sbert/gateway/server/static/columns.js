// The columns of a search: each sends its own requests, and may load more hits.

import { requestOf, rewritten } from "./bodies.js";
import { byId, element } from "./dom.js";
import { search } from "./engine.js";
import { aggregationsOf, othersOf } from "./facets.js";
import { listOf, summaryOf, totalText } from "./hits.js";
import { cosineText } from "./numbers.js";
import { COLUMNS, PAGE, bodyOf, nearestBody } from "./queries.js";

/** Show the headings of the columns, which are still empty. */
export function prepare() {
  byId("columns").replaceChildren(...COLUMNS.map((column) => element(
    "section",
    { class: "column", "data-name": column.name, "aria-labelledby": `${column.name}-heading`, "aria-busy": "true" },
    element("h3", { id: `${column.name}-heading` }, column.heading),
    element("p", { class: "note" }, marked(column.note[0]), element("span", { class: "more" }, marked(column.note[1], "common"))),
    element("div", { class: "found" }, element("p", {}, "Searching…")),
  )));
  offerViews();
}

const marked = (note, kind = null) => note.split("*").map((part, number) => (number % 2 === 1 ? element("mark", { class: kind }, part) : part));

/**
 * Search with one column and show its hits.
 *
 * `asked` is what `bodyOf` takes, with `index` and `facets`; `changed` is called with the answer when further hits of
 * the column were shown. Gives the engine's answer.
 */
export async function run(column, asked, { changed, signal }) {
  const section = document.querySelector(`.column[data-name="${column.name}"]`);
  const counts = aggregationsOf(asked.facets);
  section.setAttribute("aria-busy", "true");
  try {
    const body = bodyOf(column, asked, counts);
    // One record in the search log for all lists: that of the list which a narrow screen shows.
    const found = await search(asked.index, body, column.mode, signal, { logged: !asked.isRepeated && column.name === viewed() });
    const near = found.answer.hits.hits.length === 0 ? await nearestOf(column, asked, counts, signal) : null;
    // Without a hit to return, the gateway makes no search hybrid.
    const others = await Promise.all(othersOf(asked.facets, asked.filters).map(([filters, aggregations]) =>
      search(asked.index, bodyOf(column, { ...asked, filters, size: 1 }, aggregations), column.mode, signal)));
    found.answer.aggregations = Object.assign({}, (near ?? found.answer).aggregations, ...others.map(({ answer }) => answer.aggregations));
    show(section, column, asked, found, near, { changed, signal });
    countView(column.name, totalText(found.answer), near?.hits.hits.length ?? 0);
    return found.answer;
  } catch (error) {
    if (error.name !== "AbortError") {
      section.querySelector(".found").replaceChildren(element("p", { class: "message problem" }, element("strong", {}, "No answer: "), error.message));
    }
    throw error;
  } finally {
    if (!signal.aborted) section.setAttribute("aria-busy", "false");
  }
}

/** The element that shows the body of a column, without the facets' aggregations. */
function requested(column, asked) {
  const plain = toPaste(bodyOf(column, asked));
  if (column.name === "lexical") return requestOf(asked.index, null, plain);
  return requestOf(asked.index, plain, rewritten(asked.index, plain, column.mode), column.mode);
}

/** A body for other programs, with the engine's usual tags around found words. */
function toPaste({ highlight, ...body }) {
  if (highlight === undefined) return body;
  const { pre_tags, post_tags, ...usual } = highlight;
  return { ...body, highlight: usual };
}

/** The answer with the nearest documents that the minimum cosine has dropped; null if there is no minimum. */
async function nearestOf(column, asked, counts, signal) {
  if (column.name !== "semantic" || asked.field.min_cosine === null || asked.unlimited) return null;
  return (await search(asked.index, nearestBody(asked, counts), column.mode, signal)).answer;
}

function show(section, column, asked, found, near, then) {
  const shown = found.answer.hits.hits.length;
  const again = async (changes, focused) => {
    const answer = await run(column, { ...asked, ...changes, isRepeated: true }, then).catch((error) => {
      if (error.name !== "AbortError") section.querySelector(".message").setAttribute("role", "alert");
      return null;
    });
    if (answer === null) return;
    focused()?.focus();
    then.changed(column, answer);
  };
  const further = () => again({ size: asked.size + PAGE }, () => section.querySelectorAll(".hits > li")[shown]);
  const full = shown === asked.size && shown < Math.min(found.answer.hits.total.value, Math.max(asked.k, PAGE));
  const nearest = near?.hits.hits.length ?? 0;
  if (nearest > 0 || asked.unlimited) {
    const toggle = () => {
      choose(column.name);
      void again({ unlimited: !asked.unlimited, size: PAGE }, () => byId("minimum").querySelector("button"));
    };
    byId("minimum").replaceChildren(minimumOf(asked, toggle));
  }
  section.querySelector(".found").replaceChildren(
    element("p", { class: "summary" }, summaryOf(found, nearest === 0)),
    element(
      "div",
      {},
      nearest > 0 ? listOf(column, near, asked) : shown === 0 ? emptied(column, asked) : listOf(column, found.answer, asked),
      full ? element("button", { type: "button", class: "after", click: further, "aria-label": `Show more ${column.heading} hits` }, "Show more") : null,
      requested(column, asked),
    ),
  );
}

/** What the page says when the minimum cosine has dropped all documents, or is off; `toggle` does the other. */
function minimumOf(asked, toggle) {
  const minimum = cosineText(asked.field.min_cosine);
  const [what, other] = asked.unlimited
    ? [`Showing all semantic hits, also those below cosine ${minimum}.`, "Apply the minimum again"]
    : [`No document reaches the minimum cosine of ${minimum}${asked.filters.length > 0 ? " with these filters" : ""}.`, "Show all semantic hits"];
  return element("div", { class: "message" }, element("p", {}, what), element("button", { type: "button", click: toggle }, other));
}

/** Say above the lists what they hold if one of the two searches has found nothing; say nothing above an empty list. */
export function noteLists({ field }, answers) {
  const [semantic, lexical, hybrid] = COLUMNS.map(({ name }) => answers.get(name)?.hits.hits.length);
  const note = (name, first, rest) => document.querySelector(`[data-name="${name}"] .note`).replaceChildren(first, element("span", { class: "more" }, rest));
  const hasMinimum = byId("minimum").childElementCount > 0;
  const minimum = hasMinimum ? cosineText(field.min_cosine) : "";
  const shown = document.querySelectorAll('[data-name="semantic"] .hits > li').length;
  if (hasMinimum) note("semantic", semantic > 0 ? "Closest in meaning" : `Closest ${shown} shown`, `; dashed: below ${minimum}`);
  if (hybrid > 0 && hasMinimum) note("hybrid", "Word matches only", `; cosine below ${minimum}`);
  else if (hybrid > 0 && lexical === 0) note("hybrid", "Semantic ranking only", "; no word matches");
  for (const other of document.querySelectorAll(".other")) other.textContent = semantic === 0 && shown > 0 ? `See the ${shown} closest` : "Try Semantic";
  for (const section of byId("columns").children) {
    section.querySelector(".note").hidden = answers.has(section.dataset.name) && section.querySelector(".hits") === null;
  }
}

/** What a list without hits says. */
function emptied(column, asked) {
  const other = element("button", { type: "button", class: "other", click: () => choose("semantic") }, "Try Semantic");
  return element("div", { class: "message" }, element("p", {}, emptyWords(column, asked)), column.name === "lexical" && asked.filters.length === 0 ? other : null);
}

function emptyWords(column, asked) {
  if (asked.filters.length > 0) return "No document matches these filters. Remove one of them.";
  if (column.name === "lexical") return "No document contains any of these words.";
  if (column.name === "hybrid") return `No document ${asked.field.min_cosine === null ? "has a vector" : `reaches a cosine of ${cosineText(asked.field.min_cosine)}`}, and none contains these words.`;
  return "No document has a vector yet. Embed the documents with es-sbert ingest.";
}

// Narrow screens have room for one column: a row of buttons selects it. Wide ones show all, and the style hides the row.

let chosen = null; // name of the column that was chosen last

/** Show the buttons of the columns, and the column that was chosen before, or the first. */
function offerViews() {
  byId("views").replaceChildren(...COLUMNS.map(({ name, heading }) => element(
    "button",
    { type: "button", "data-view": name, click: () => choose(name) },
    `${heading} `,
    element("span", { class: "count" }),
  )));
  showView(viewed());
}

function choose(name) {
  chosen = name;
  showView(name);
  byId("views").dispatchEvent(new Event("change"));
}

/** Name of the column that a screen with room for one shows. */
export const viewed = () => chosen ?? COLUMNS[0].name;

/** Show a column on a screen with room for one. */
function showView(name) {
  for (const button of byId("views").children) button.setAttribute("aria-pressed", `${button.dataset.view === name}`);
  for (const section of byId("columns").children) section.classList.toggle("current", section.dataset.name === name);
}

/** Show the number of documents that a column has found, and how many more it shows. */
function countView(name, total, more) {
  byId("views").querySelector(`[data-view="${name}"] .count`).replaceChildren(more > 0 ? `${total}, ${more} closest` : total);
}
