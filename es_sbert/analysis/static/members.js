// The texts of a group: as a list, or as what differs from the kept text.

/** A text as nodes, with `parts` of it (pairs of offsets) in elements called `name`. */
function textOf(text, parts = [], name = "mark") {
  if (texts[text] === "") return element("p", { class: "text note" }, "(text not known)");
  return element("p", { class: "text", dir: "auto" }, marked(reflowed(texts[text]), parts, name), endOf(text));
}

const endOf = (text) => (shortened.has(text) ? "…" : "");

/** The id of a text; null if the text begins with it. A short id may be a word that the text begins with by chance. */
function idOf(text, shown = texts[text]) {
  const id = ids[text];
  if (id.length > 3 && shown.startsWith(id) && !/^[\p{L}\p{N}]/u.test(shown.slice(id.length))) return null;
  return element("bdi", { class: "id" }, breakable(beginning(id, 200)));
}

const isKept = (text) => groupOf[text] !== -1 && groups[groupOf[text]].kept === text;

/** Whether a text is kept or may be removed; empty for kinds other than near-duplicates, and for texts in no group. */
function fateOf(text) {
  if (isClusters || isPairs || groupOf[text] === -1) return "";
  return element("span", { class: "who" }, isKept(text) ? "Kept" : "Removable");
}

/** The cosine of a removable text with the kept one; null for others. */
function cosineWithKept(text) {
  if (fateOf(text) === "" || isKept(text)) return null;
  const { members, cosines } = groups[groupOf[text]];
  return cosines[members.indexOf(text)];
}

/** A disclosure with the ids of the copies of a text; null if there are none. */
const copiesOf = (own, words = counted(own.length, "more identical text", "more identical texts")) => (own.length === 0 ? null : element(
  "details",
  { class: "copies" },
  element("summary", {}, words),
  element("ul", {}, own.map((text) => element("li", {}, idOf(text, "")))),
));

const cosineOf = (value) => element("span", { class: "cosine" }, `cosine ${value.toFixed(DECIMALS)}`);

/** A button that selects a group: `go` is called with its number, and whether a key was pressed. */
function groupButton(number, go) {
  return element(
    "button",
    { type: "button", class: "link", click: (event) => go(number, event.detail === 0) },
    swatchOf(classOfGroup[number]),
    headingOf(number),
  );
}

/** The rows of a group: places of members with identical texts. Those identical with the kept text are the first row; the others begin with the least similar one. */
function rowsOf(number) {
  const { members, cosines, kept, marks } = groups[number];
  const places = members.map((_, place) => place);
  if (isClusters) return byText(places, (place) => members[place]);
  const isSame = (place) => members[place] === kept || (marks[place] === null && texts[kept] !== "" && texts[members[place]] === texts[kept]);
  const others = places.filter((place) => !isSame(place)).sort((one, two) => cosines[one] - cosines[two]);
  const copies = places.filter((place) => isSame(place) && members[place] !== kept);
  const rows = byText(others, (place) => members[place]);
  return isPairs && copies.length === 0 && rows.length > 0 ? rows : [[members.indexOf(kept), ...copies], ...rows];
}

/** One row of a group. */
function rowOf(number, places) {
  const { members, cosines, kept, marks } = groups[number];
  const [place] = places;
  const own = places.map((each) => members[each]);
  const [text, ...copies] = own;
  if (isClusters) return rowElement([cosineOf(cosines[place]), idOf(text)], textOf(text), copies);
  if (text !== kept && isPairs) return pairOf(kept, own, marks[place]);
  if (text !== kept) {
    const compared = comparisonOf(kept, text, marks[place]) ?? textOf(text, unitOffsets(texts[text], marks[place]?.[1] ?? []), "ins");
    return rowElement([element("span", { class: "who" }, "Removable"), idOf(text), cosineOf(cosines[place]), differencesOf(marks[place])], compared, copies, undefined, removableCopies(copies));
  }
  if (isPairs) return element("li", {}, textOf(text), copiesOf(own, "Ids"));
  return rowElement([element("span", { class: "who" }, "Kept"), idOf(text)], textOf(text), copies, "kept", removableCopies(copies));
}

const removableCopies = ({ length }) => `${counted(length, "identical text", "identical texts")}, removable`;

const rowElement = (facts, text, copies, name, words) => element("li", { class: name }, element("div", { class: "facts" }, facts), text, copiesOf(copies, words));

const MOST_PARTS = 3; // differences of texts that share less than half

/** Two texts as one, with what is only in either marked; null if it would be hard to read. */
function comparisonOf(kept, text, marks) {
  if (marks === null) return null;
  const [one, two] = [reflowed(texts[kept]), reflowed(texts[text])];
  const pieces = merged(one, two + endOf(text), unitOffsets(texts[kept], marks[0]), unitOffsets(texts[text], marks[1]));
  const shared = pieces.reduce((sum, [name, part]) => sum + (name === "" ? solid(part) : 0), 0);
  if (shared < (marks[2] > MOST_PARTS ? Math.max(one.length, two.length) / 2 : Math.min(one.length, two.length) / 3)) return null;
  const last = pieces.length - 1;
  return element(
    "p",
    { class: "text", dir: "auto" },
    pieces.flatMap(([name, part], place) => (name === "" ? folding(part, place === last && place > 0) : [element(name, {}, breakable(part))])),
  );
}

/** A pair: as one text, or side by side if the texts share little. */
function pairOf(kept, own, marks) {
  const [text, ...copies] = own;
  const one = comparisonOf(kept, text, marks);
  const who = (place, each) => [element("span", { class: "who" }, ["First", "Second"][place]), idOf(each)];
  if (one !== null) {
    const isNamed = idOf(kept) === null && idOf(text) === null;
    return element("li", {}, isNamed ? null : element("div", { class: "facts" }, [...who(0, kept), ...who(1, text)]), one, copiesOf(copies));
  }
  const side = (place, each, name) => element("div", { class: "side" }, element("div", { class: "facts" }, who(place, each)), textOf(each, unitOffsets(texts[each], marks?.[place] ?? []), name));
  return element("li", { class: "sides" }, side(0, kept, "del"), side(1, text, "ins"), copiesOf(copies));
}

const [, minimum] = report.facts.find(([name]) => name === "minimum cosine") ?? [];

/** Whether near-duplicates of a group are linked with its kept text through others only. */
const isChain = (number) => report.kind === "duplicates" && groups[number].cosine < Number(minimum);

/** The figures of a group below its heading: of a pair its cosine and the number of differences. */
function factsOf(number) {
  const { marks, cosine } = groups[number];
  const other = isPairs ? marks.findIndex((each) => each !== null) : -1;
  const chain = isChain(number) ? ` (below ${minimum}: similar via other texts)` : "";
  const facts = [`${figuresOf(number)}${chain}`, other === -1 ? "" : differencesOf(marks[other])].filter(Boolean).join(", ");
  return `${facts[0].toUpperCase()}${facts.slice(1)}`;
}

/** A description of the differences between two texts, for readers who cannot see the marks. */
function differencesOf(marks) {
  if (marks === null) return "";
  const [, , count, later] = marks;
  const words = count === 0 ? "the same words" : counted(count, "difference", "differences");
  return later ? `${words} in the first ${numbers.format(report.limit)} characters; the texts differ after that, which is not shown` : words;
}

/** How many texts of a group are listed, in which order, and how many are not on the page. */
function membersNote(number, shown) {
  const { size, members } = groups[number];
  const rows = rowsOf(number).length;
  const left = size - members.length;
  const missing = left > 0 ? ` ${counted(left, "further text", "further texts")} of this ${kind.one} ${left === 1 ? "is" : "are"} not on this page.` : "";
  if (isClusters) return `${numbers.format(shown)} ${rows < members.length ? `of ${counted(rows, "different text", "different texts")} ` : ""}shown, most typical first: by cosine with the cluster’s mean.${missing}`;
  return rows > 2 ? `Least similar first.${missing}` : missing;
}
