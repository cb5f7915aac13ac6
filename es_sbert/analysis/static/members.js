// The texts of a group: as a list, or side by side with the kept text, with differing words marked.

/** A text as nodes, with `parts` of it (pairs of offsets) in elements called `name`. */
function textOf(text, parts = [], name = "mark") {
  if (texts[text] === "") return element("p", { class: "text note" }, "(text not known)");
  return element("p", { class: "text", dir: "auto" }, marked(texts[text], parts, name), shortened.has(text) ? "…" : "");
}

const idOf = (text) => element("bdi", { class: "id" }, beginning(ids[text], 200));

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

/** The members of a group to list: all of them, or those to compare with the kept text. */
function rowsOf(number) {
  const { members, kept } = groups[number];
  const places = members.map((_, place) => place);
  if (isClusters) return places;
  const others = places.filter((place) => members[place] !== kept);
  return others.length > 0 ? others : places;
}

/** One row of a group. */
function rowOf(number, place) {
  const { members, cosines, kept, marks } = groups[number];
  const member = members[place];
  if (isClusters || member === kept) {
    return element("li", {}, element("p", { class: "facts" }, cosineOf(cosines[place]), idOf(member)), textOf(member));
  }
  return comparison(kept, member, cosines[place], marks[place]);
}

function comparison(kept, member, cosine, marks) {
  const [one, two] = marks ?? [[], []];
  const side = (title, text, flat, name) => element(
    "div",
    { class: "side" },
    element("p", { class: "facts" }, element("span", { class: "who" }, title), idOf(text)),
    textOf(text, unitOffsets(texts[text], flat), name),
  );
  return element(
    "li",
    { class: "comparison" },
    element("p", { class: "facts" }, cosineOf(cosine), element("span", {}, differencesOf(kept, member, marks))),
    side(isPairs ? "First" : "Kept", kept, one, "del"),
    side(isPairs ? "Second" : "Near-duplicate", member, two, "ins"),
  );
}

/** A description of the differences between two texts, for readers who cannot see the marks. */
function differencesOf(kept, member, marks) {
  if (texts[kept] === "" || texts[member] === "") return "";
  if (marks === null) return "identical texts";
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
