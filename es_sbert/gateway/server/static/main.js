// The page. Its address holds the search; everything else is derived from it.

import { copied } from "./bodies.js";
import { noteLists, prepare, run, viewed } from "./columns.js";
import { showCosines } from "./cosines.js";
import { byId, element, isWide } from "./dom.js";
import { RequestFailed, askPage, setEngineRoot } from "./engine.js";
import { chosenOf, facetsOf, filtersOf, ignored } from "./facets.js";
import { totalText } from "./hits.js";
import { countText } from "./numbers.js";
import { COLUMNS, PAGE } from "./queries.js";
import { askToSignIn, signedIn, signingIn } from "./signin.js";
import { showStart } from "./start.js";
import { readState, toggled, writeState } from "./state.js";
import { LONG_NAME, beginning, shortName, visible } from "./text.js";

const TITLE = document.title;
const NO_VECTORS = "es-sbert ingest --index docs articles.jsonl";

let settings = null; // what the gateway says of itself and its indices
let facets = { index: null, list: [] };
let running = new AbortController();
let recount = () => {}; // shows the counts of the filters

/** List the indices, then run the search in the address. */
async function begin() {
  tell("Finding indices with vectors…");
  try {
    settings = await askPage("indices");
  } catch (error) {
    refuse(error);
    return;
  }
  setEngineRoot(settings.engine);
  signedIn();
  byId("left-out").replaceChildren(...settings.problems.map((words) => element("li", {}, visible(words))));
  if (settings.indices.length === 0) {
    problem("No index that you can read has vectors yet.", "Create an index, or embed the documents of an existing one:", NO_VECTORS);
    return;
  }
  byId("search").hidden = false; // the list has its width
  byId("index").replaceChildren(...settings.indices.map(({ name }) => element("option", { value: name, title: visible(name) }, optionOf(name))));
  await follow();
}

/** A name in the list: longer, or in whole, if it would be that of another index, too. */
function optionOf(name) {
  const room = Math.max(14, Math.floor((byId("index").clientWidth - 106) / 9.4));
  const isUnique = (length) => settings.indices.every((other) => other.name === name || shortName(other.name, length) !== shortName(name, length));
  return shortName(name, [room, LONG_NAME].find(isUnique) ?? name.length);
}

/** Run the search in the address. */
async function follow() {
  const state = readState(location.search);
  const index = settings.indices.find(({ name }) => name === state.index) ?? (state.index === "" ? settings.indices[0] : null);
  running.abort();
  running = new AbortController();
  byId("query").value = state.query;
  clearResults();
  byId("index").querySelector("[value='']")?.remove();
  if (index === null) byId("index").prepend(element("option", { value: "", hidden: true }, "Choose an index…"));
  byId("index").value = index?.name ?? "";
  offerFields(index ?? { name: "", fields: [] });
  if (index === null) {
    problem("This index cannot be searched", "It does not exist, has no vectors, or you cannot read it. Choose another index.", visible(state.index), { first: true });
    return;
  }
  if (new URLSearchParams(location.search).has("like")) {
    problem("The page does not search for documents like another one any more.", "Use the command line:", "es-sbert search --index INDEX --like ID");
    return;
  }
  const field = index.fields.find(({ name }) => name === state.field) ?? index.fields[0];
  byId("field").value = field.name;
  if (state.query.trim() === "") {
    tell("Type what you are looking for.");
    // On a touch screen its keyboard would cover the examples.
    if (matchMedia("(pointer: fine)").matches) byId("query").focus();
    await showStartOf(state, index, field);
    return;
  }
  const { signal } = running;
  byId("results").setAttribute("aria-busy", "true");
  try {
    await searchAll(state, index, field, signal);
  } catch (error) {
    if (!signal.aborted) refuse(error);
  } finally {
    if (!signal.aborted) byId("results").setAttribute("aria-busy", "false");
  }
}

/** Show the index to search, and some example queries. */
async function showStartOf(state, index, field) {
  const { signal } = running;
  const ask = (query) => go({ ...state, query, index: index.name, field: field.name });
  try {
    await showStart({ name: index.name, field, highlight: settings.highlight }, ask, signal);
  } catch (error) {
    if (!signal.aborted) refuse(error);
  }
}

/** Show what belongs to a chosen index: its name in whole if the list shortens it, and its vector fields. */
function offerFields(index) {
  byId("name-toggle").hidden = optionOf(index.name) === visible(index.name);
  unfold("name-toggle", false);
  byId("whole-name").textContent = visible(index.name);
  byId("copy-name").textContent = "Copy";
  byId("field").replaceChildren(...index.fields.map(({ name, model }) => element("option", { value: name }, visible(`${name} (${model})`))));
  byId("field-choice").hidden = index.fields.length < 2;
}

async function searchAll(state, index, field, signal) {
  tell("Searching…");
  byId("results").hidden = false;
  headed(state.query);
  prepare();
  if (facets.index !== index.name) {
    facets = { index: index.name, list: (await askPage(`facets?index=${encodeURIComponent(index.name)}`, undefined, signal)).facets };
  }
  for (const id of ["facets", "facets-toggle"]) byId(id).hidden = facets.list.length === 0;
  const asked = {
    text: state.query, index: index.name, field, facets: facets.list,
    filters: filtersOf(facets.list, state.chosen), size: PAGE, k: settings.k,
    highlight: settings.highlight,
  };
  const answers = new Map();
  const toggle = (name, value) => go(toggled(state, name, value));
  const then = {
    signal,
    changed: (column, answer) => {
      answers.set(column.name, answer);
      noteLists(asked, answers);
      recount();
      void showCosines(asked, answers, signal);
      tell(`${column.heading}: ${countText(answer.hits.hits.length)} shown.`);
    },
  };
  const ended = await Promise.allSettled(COLUMNS.map((column) => run(column, asked, then)));
  if (signal.aborted) return;
  COLUMNS.forEach(({ name }, number) => {
    if (ended[number].status === "fulfilled" && !answers.has(name)) answers.set(name, ended[number].value);
  });
  const refused = ended.find(({ reason }) => reason instanceof RequestFailed && reason.status === 401);
  if (refused !== undefined) throw refused.reason;
  byId("chosen").replaceChildren(...chosenOf(facets.list, state.chosen, toggle));
  const inUse = byId("chosen").childElementCount;
  byId("facets-toggle").textContent = inUse > 0 ? `Filters (${inUse})` : "Filters";
  recount = () => {
    const counted = answers.get(isWide.matches ? COLUMNS.at(-1).name : viewed());
    const made = facetsOf(facets.list, counted?.aggregations, state.chosen, toggle).filter((each) => each !== null);
    byId("facet-list").replaceChildren(...(made.length > 0 ? made : [element("p", { class: "note" }, "No hits to filter.")]));
    byId("facets-note").hidden = made.length === 0;
    byId("facets-close").textContent = counted?.hits.hits.length > 0 ? `Show ${totalText(counted)} ${counted.hits.total.value === 1 ? "result" : "results"}` : "Close";
  };
  recount();
  focusAgain();
  noteLists(asked, answers);
  tell(COLUMNS.map(({ name, heading }) => `${heading}: ${announced(answers.get(name))}.`).join(" ") + ignored(facets.list, state.chosen));
  await showCosines(asked, answers, signal);
}

/** Show the query as the heading of the page; the text keeps its own direction. */
function headed(text) {
  byId("results-heading").replaceChildren("Results for “", element("bdi", {}, visible(beginning(text, 100))), "”");
  document.title = `${text} – ${TITLE}`;
}

const announced = (answer) => (answer === undefined ? "no answer" : `${totalText(answer)} found, ${countText(answer.hits.hits.length)} shown`);

/** Start another search; the browser's back button returns to this one. */
function go(state) {
  remembered = document.activeElement?.dataset ?? null;
  history.pushState(null, "", writeState(state));
  void follow();
  // The pressed element may be gone with the previous hits, so the keyboard focus moves to the new ones.
  if (document.activeElement === document.body) byId("results").focus();
}

// Checkboxes are created again for every search; the keyboard focus stays at the same one.
let remembered = null;
function focusAgain() {
  if (remembered?.field === undefined) return;
  const { field, value } = remembered;
  remembered = null;
  [...document.querySelectorAll("#facet-list input")].find(({ dataset }) => dataset.field === field && dataset.value === value)?.focus();
}

function clearResults() {
  document.title = TITLE;
  recount = () => {};
  byId("message").replaceChildren();
  byId("results").hidden = true;
  byId("results").setAttribute("aria-busy", "false");
  for (const id of ["columns", "views", "facet-list", "facets-close", "chosen", "cosines", "minimum", "start-body"]) byId(id).replaceChildren();
  for (const id of ["facets", "facets-toggle", "start"]) byId(id).hidden = true;
}

function refuse(error) {
  if (!(error instanceof RequestFailed)) throw error;
  clearResults();
  if (error.status === 401) {
    byId("search").hidden = true;
    tell(askToSignIn());
    return;
  }
  problem("The search failed.", error.message);
}

function problem(what, remedy, command, { first = false } = {}) {
  const code = command === undefined ? null : element("p", {}, element("code", {}, command));
  tell("");
  byId("message").replaceChildren(element(
    "div",
    { class: "message problem" },
    element("p", {}, element("strong", {}, what)),
    first ? code : null,
    element("p", {}, remedy),
    first ? null : code,
  ));
}

function tell(words) {
  byId("status").textContent = words;
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const state = readState(location.search);
  const index = byId("index").value;
  const same = index === (state.index || settings.indices[0].name);
  go({ query: byId("query").value, index, field: same ? byId("field").value : "", chosen: same ? state.chosen : new Map() });
});
signingIn(begin, () => {
  facets = { index: null, list: [] };
  byId("search").hidden = true;
  byId("left-out").replaceChildren();
  clearResults();
});
byId("index").addEventListener("change", () => offerFields(settings.indices.find(({ name }) => name === byId("index").value)));
byId("copy-name").addEventListener("click", async () => {
  byId("copy-name").textContent = (await copied(byId("index").value, byId("whole-name"))) ? "Copied" : "Press Ctrl+C";
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") unfold("name-toggle", false);
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  byId("query").focus();
  byId("query").select();
});
// The choice of colors; theme.js applies it before the page is drawn.
byId("theme").value = document.documentElement.dataset.theme ?? "system";
byId("theme").addEventListener("change", ({ target: { value } }) => {
  if (value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
  localStorage.setItem("es-sbert-theme", value);
});
/** Open or close what a button opens; the style shows the filters of wide screens always. */
function unfold(id, isOpen = byId(id).getAttribute("aria-expanded") === "false") {
  byId(id).setAttribute("aria-expanded", `${isOpen}`);
  if (id === "name-toggle") byId("whole").hidden = !isOpen;
  else if (isOpen) byId("facet-list").querySelector(":checked")?.closest("li").scrollIntoView({ block: "nearest" });
}
for (const id of ["name-toggle", "facets-toggle"]) byId(id).addEventListener("click", () => unfold(id));
byId("facets-close").addEventListener("click", () => {
  unfold("facets-toggle", false);
  byId("facets-toggle").focus();
});
for (const changing of [byId("views"), isWide]) changing.addEventListener("change", () => recount());
window.addEventListener("popstate", () => { if (settings !== null) void follow(); });
void begin();
