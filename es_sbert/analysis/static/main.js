// The selection, and the parts of the page that follow it.

const FEW = 100; // milliseconds between messages to screen readers, so that only the last of many is read

let selected = -1;
let telling = 0;

function tell(words) {
  clearTimeout(telling);
  telling = setTimeout(() => { byId("status").textContent = words; }, FEW);
}

/** Select a group, -1 for none; `focus` moves the focus to its texts. */
function select(number, focus = true) {
  selected = number;
  if (number !== -1 && onOneColumn.matches) showList(false); // the texts are below it
  groupList.select(number);
  showDetails(number, (next) => select(next));
  showAbout(number);
  map.highlight(number === -1 ? null : groups[number].members, number);
  if (number !== -1) tell(`${nameOf(number)}, ${figuresOf(number)}, is selected.`);
  if (focus) {
    byId("details-heading").focus({ preventScroll: true });
    if (number !== -1 && onOneColumn.matches) byId("details").scrollIntoView({ block: "start" });
    else showTop(byId("details"));
  }
}

/** Scroll to an element whose top is not in the upper half of the window. */
function showTop(shown) {
  const { top } = shown.getBoundingClientRect();
  if (top < 0 || top > window.innerHeight / 2) shown.scrollIntoView({ block: "start" });
}

/** Focus a group in the list, or the button that opens the list if it is closed. */
function returnToList(number) {
  if (onOneColumn.matches && byId("groups").classList.contains("folded")) byId("groups-toggle").focus();
  else groupList.focus(number);
}

/** Open or close the list of groups of a page with one column. */
function showList(isOpen) {
  byId("groups").classList.toggle("folded", !isOpen);
  byId("groups-toggle").setAttribute("aria-expanded", `${isOpen}`);
  byId("groups-toggle").textContent = isOpen ? "Close the list" : `Jump to a ${kind.one}`;
}

function chooseOnMap(text) {
  const group = groupOf[text];
  if (group !== -1) select(group, false);
  else tell(`${titleOf(text, 160)} is ${kind.none}.`);
}

const MADE_BY = "made by"; // at the end of the page

function showFacts() {
  byId("facts").replaceChildren(
    ...report.facts.filter(([name]) => name !== MADE_BY).map(([name, value]) => element("div", {}, element("dt", {}, label(name)), element("dd", { dir: "auto" }, label(value)))),
  );
  const { total } = report;
  const notes = [
    total.texts > textCount && `This page holds ${numbers.format(textCount)} of ${counted(total.texts, "text", "texts")}: the first of the ${kind.many}, and a random sample of the others. The map and the search are limited to them.`,
    total.groups > groups.length && `This page holds ${numbers.format(groups.length)} of ${counted(total.groups, ...GROUP_UNIT)}.`,
    textCount > 0 && texts.every((text) => text === "") && "The texts are not known; their ids are shown.",
  ];
  byId("notes").replaceChildren(...notes.filter(Boolean).map((note) => element("li", {}, note)));
  byId("map-label").textContent = `Map of ${counted(textCount, "text", "texts")}`;
  byId("map-about").textContent = `${counted(textCount, "text", "texts")}, placed by t-SNE of their embeddings: neighbors are similar texts, a larger point is several identical texts. Far distances mean little.`;
}

/** The end of the page: how many of the shown texts are shortened, and the program that made the page. */
function showAbout(number) {
  const count = (number === -1 ? [...shortened] : groups[number].members.filter((text) => shortened.has(text))).length;
  const [, maker] = report.facts.find(([name]) => name === MADE_BY) ?? [];
  const last = [
    count > 0 && `${counted(count, "text is", "texts are")} shortened to ${numbers.format(report.limit)} characters.`,
    report.kind === "duplicates" && groups.length > 0 && "The option -o writes all groups with their ids to a file.",
    maker && `Made by ${label(maker).replaceAll("-", "-\u2060")}.`,
  ];
  byId("about").textContent = last.filter(Boolean).join(" ");
}

byId("title").replaceChildren(...byId("title").textContent.split(" ").flatMap((word) => [element("span", {}, word), " "]));
showFacts();
byId("map").hidden = isPairs || textCount === 0; // pairs are compared with each other
showList(false);
showLegend(() => finder.showUngrouped());
const map = new TextMap(chooseOnMap, tell);
const rest = (found) => map.highlight(found ?? (selected === -1 ? null : groups[selected].members), found === null ? selected : -1);
let inSearch = null; // the texts that were found
const groupList = new GroupList(
  (number, keyboard) => select(number, keyboard || onOneColumn.matches),
  (number) => (number === -1 ? rest(inSearch) : map.highlight(groups[number].members, number, true)),
);
const finder = new TextFinder(
  (number) => select(number),
  (found) => {
    inSearch = found;
    rest(found);
    groupList.showFound(byId("query").value === "" ? null : found);
  },
  tell,
);
showDetails(-1, (number) => select(number));
showAbout(-1);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => map.readColors());
byId("order-by").addEventListener("change", ({ currentTarget }) => {
  groupOrder.sort((one, two) => (currentTarget.value === "cosine" ? groups[one].cosine - groups[two].cosine : 0) || one - two);
  groupList.fill();
  select(selected, false);
});
byId("zoom-in").addEventListener("click", () => map.zoom(1.4));
byId("zoom-out").addEventListener("click", () => map.zoom(1 / 1.4));
byId("zoom-all").addEventListener("click", () => map.showAll());
byId("zoom-selection").addEventListener("click", () => map.showHighlighted());
// While the map is in view, its button is not needed; it keeps its place, so that nothing moves.
new IntersectionObserver((entries) => document.body.classList.toggle("sees-map", entries.at(-1).isIntersecting), { threshold: 0.5 }).observe(byId("map-frame"));
for (const id of ["show-map", "jump-map", "found-map"]) byId(id).addEventListener("click", () => {
  map.showHighlighted();
  byId("map").scrollIntoView({ block: "start" });
  byId("map-canvas").focus({ preventScroll: true });
});
byId("show-all").addEventListener("click", () => {
  const before = selected;
  select(-1, !onOneColumn.matches);
  if (onOneColumn.matches) returnToList(before); // which scrolls to it
});
for (const [id, step] of [["previous", -1], ["next", 1]]) {
  byId(id).setAttribute("aria-label", `${id === "next" ? "Next" : "Previous"} ${kind.one}`);
  byId(id).addEventListener("click", ({ currentTarget }) => {
    select(groupOrder[groupOrder.indexOf(selected) + step], false);
    showTop(byId("details"));
    if (currentTarget.disabled) byId("details-heading").focus({ preventScroll: true });
  });
}
byId("groups-toggle").addEventListener("click", ({ currentTarget }) => {
  showList(byId("groups").classList.contains("folded"));
  if (!byId("groups").classList.contains("folded") && currentTarget.getBoundingClientRect().bottom > window.innerHeight / 2) byId("groups").scrollIntoView({ block: "start" });
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || selected === -1) return;
  const before = selected;
  const inDetails = byId("details").contains(document.activeElement);
  select(-1, false);
  if (inDetails) returnToList(before);
  tell("Nothing is selected.");
});
document.querySelector("main").setAttribute("aria-busy", "false");
performance.mark("usable");
