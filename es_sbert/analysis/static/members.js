// The texts of a group: as a list, or side by side with the kept text, with differing words marked.

/** A text as nodes, with `parts` of it (pairs of offsets) in elements called `name`. */
function textOf(text, parts = [], name = "mark", rest = breakable) {
  if (texts[text] === "") return element("p", { class: "text note" }, "(text not known)");
  return element("p", { class: "text", dir: "auto" }, marked(reflowed(texts[text]), parts, name, rest), shortened.has(text) ? "…" : "");
}

const idOf = (text) => element("bdi", { class: "id" }, breakable(beginning(ids[text], 200)));

/** A disclosure with the ids of texts; its summary says how many there are. */
const copiesOf = (words, own) => element("details", { class: "copies" }, element("summary", {}, words), element("ul", {}, own.map((text) => element("li", {}, idOf(text)))));

/** The id of a text, and those of its copies, which are folded. */
const idsOf = ([text, ...copies]) => [idOf(text), copies.length === 0 ? null : copiesOf(`and ${counted(copies.length, "identical text", "identical texts")}`, copies)];

const cosineOf = (value) => element("span", { class: "cosine" }, `cosine ${value.toFixed(DECIMALS)}`);

/** A button that selects a group: `go` is called with its number, and whether a key was pressed. */
function groupButton(number, go, words) {
  return element(
    "button",
    { type: "button", class: "link", click: (event) => go(number, event.detail === 0) },
    element("span", { class: `swatch c${classOfGroup[number]}`, "aria-hidden": "true" }),
    words ?? nameOf(number),
  );
}

/** The rows of a group: places of members with identical texts. Those identical with the kept text are the first row. */
function rowsOf(number) {
  const { members, kept, marks } = groups[number];
  const places = members.map((_, place) => place);
  if (isClusters) return byText(places, (place) => members[place]);
  const isCopy = (place) => marks[place] === null && texts[members[place]] !== "";
  const others = places.filter((place) => members[place] !== kept);
  const copies = others.filter(isCopy);
  const rows = byText(others.filter((place) => !isCopy(place)), (place) => members[place]);
  return copies.length > 0 || rows.length === 0 ? [[members.indexOf(kept), ...copies], ...rows] : rows;
}

/** One row of a group. */
function rowOf(number, places) {
  const { members, cosines, kept, marks } = groups[number];
  const [place] = places;
  const own = places.map((each) => members[each]);
  if (isClusters) return element("li", {}, element("div", { class: "facts" }, cosineOf(cosines[place]), ...idsOf(own)), textOf(own[0]));
  if (own[0] !== kept) return comparison(kept, own, cosines[place], marks[place]);
  const ids = isPairs ? copiesOf(counted(own.length, "identical text", "identical texts"), own) : [element("span", { class: "who" }, "Kept"), ...idsOf(own)];
  // A short text is the title of its group.
  return element("li", { class: "same" }, element("div", { class: "facts" }, ids), label(texts[own[0]]) === nameOf(number) ? null : textOf(own[0]));
}

const sideOf = (title, own, flat, name, rest) => element(
  "div",
  { class: "side" },
  element("div", { class: "facts" }, element("span", { class: "who" }, title), idsOf(own)),
  textOf(own[0], unitOffsets(texts[own[0]], flat), name, rest),
);

function comparison(kept, own, cosine, marks) {
  const [one, two] = marks ?? [[], []];
  const rest = one.length + two.length > 0 ? folding : breakable;
  return element(
    "li",
    { class: "comparison" },
    isPairs && !marks?.[3] ? null : element("p", { class: "facts" }, isPairs ? null : cosineOf(cosine), element("span", {}, differencesOf(kept, own[0], marks))),
    sideOf(isPairs ? "First" : "Kept", [kept], one, "del", rest),
    sideOf(isPairs ? "Second" : "Near-duplicate", own, two, "ins", rest),
  );
}

/** The heading of a group: of a pair its number, its cosine and the number of differences, else its name. */
function headingOf(number) {
  if (!isPairs) return nameOf(number);
  const { kept, members, marks } = groups[number];
  const other = marks.findIndex((each) => each !== null);
  const differences = other === -1 ? "" : differencesOf(kept, members[other], marks[other]).split(" in the first ")[0];
  return [nameOf(number), figuresOf(number), differences].filter(Boolean).join(" · ");
}

/** A description of the differences between two texts, for readers who cannot see the marks. */
function differencesOf(kept, member, marks) {
  if (texts[kept] === "" || texts[member] === "") return "";
  const [, , count, later] = marks;
  const words = count === 0 ? "the same words" : counted(count, "difference", "differences");
  return later ? `${words} in the first ${numbers.format(report.limit)} characters; the texts differ after that, which is not shown` : words;
}

/** The numbers of members of a group that are listed, and that are not on the page. */
function membersNote(number, shown) {
  const { size, members } = groups[number];
  const there = rowsOf(number).length;
  const unit = isClusters ? ["text", "texts"] : ["comparison", "comparisons"];
  const left = size - members.length;
  const missing = left > 0 ? ` ${counted(left, "further text", "further texts")} of this ${kind.one} ${left === 1 ? "is" : "are"} not on this page.` : "";
  return `${numbers.format(shown)} of ${counted(there, ...unit)} shown.${missing}`;
}
