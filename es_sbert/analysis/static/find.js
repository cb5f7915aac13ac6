// The search box, which finds texts and ids that contain the typed text.

const FOUND_AT_A_TIME = 20;
const EXCERPT = 200; // characters of a text in the list
const MOST_PAIRS = 4; // links of a text
const TYPING = 150; // milliseconds without a key before the search

class TextFinder {
  #folded = null;
  #timer = 0;

  /** `go` is called with a group, `changed` with the texts that were found, or null if nothing is searched for. */
  constructor(go, changed, tell) {
    this.go = go;
    this.changed = changed;
    this.tell = tell;
    const box = byId("query");
    box.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#find(box.value), TYPING);
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && box.value !== "") {
        box.value = "";
        this.#find("");
        event.preventDefault();
        event.stopPropagation();
      }
      if (event.key === "Enter") {
        clearTimeout(this.#timer);
        this.#find(box.value);
      }
    });
    byId("close-found").addEventListener("click", () => {
      box.value = "";
      this.#find("");
      box.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
      event.preventDefault();
      box.focus();
      box.select();
    });
  }

  /** List the texts that are in no group, which no other list holds. */
  showUngrouped() {
    byId("query").value = "";
    const found = Array.from({ length: textCount }, (_, text) => text).filter((text) => groupOf[text] === -1);
    this.#show(`Texts ${kind.none}`, found, "");
    byId("found-count").textContent = "";
    byId("found-heading").focus();
  }

  #find(typed) {
    const needle = folded(typed).trim();
    if (needle === "") {
      byId("found").hidden = true;
      byId("found-count").textContent = "";
      byId("found-list").replaceChildren();
      this.changed(null);
      return;
    }
    this.#folded ??= texts.map((text, number) => `${folded(text)}\n${folded(ids[number])}`);
    const found = [];
    this.#folded.forEach((text, number) => { if (text.includes(needle)) found.push(number); });
    if (isPairs) found.sort((one, two) => (groupOf[one] === -1) - (groupOf[two] === -1));
    else sortByGroup(found);
    const count = groupsWith(found);
    const words = `${numbers.format(found.length)} of ${counted(textCount, "text", "texts")} found`;
    const where = count > 0 ? `in ${counted(count, ...GROUP_UNIT)}` : "";
    this.#show(`Texts with “${label(typed)}”`, found, needle);
    byId("found-count").replaceChildren(words, ...(where ? [", ", onOneColumn.matches ? element("button", { type: "button", class: "link", click: goToList }, where) : where] : []));
    this.tell(`${[words, where].filter(Boolean).join(", ")}.`);
  }

  #show(heading, found, needle) {
    byId("found").hidden = false;
    byId("close-found").hidden = needle !== ""; // the search box has its own button
    byId("found-map").hidden = isPairs;
    byId("found-heading").textContent = heading;
    growingList(byId("found-list"), byId("more-found"), {
      items: byText(found),
      size: FOUND_AT_A_TIME,
      unit: ["text", "texts"],
      render: (own) => this.#item(own, needle),
      tell: (shown, there) => {
        const unit = there < found.length ? ["different text", "different texts"] : ["text", "texts"];
        const all = there < found.length ? "Identical texts are together." : "";
        if (there === 0) byId("found-note").textContent = "No text or id contains this.";
        else byId("found-note").textContent = shown < there ? `The first ${numbers.format(shown)} of ${counted(there, ...unit)}${isPairs ? "" : isClusters ? ", from each cluster in turn" : ", by group"}.` : all;
      },
    });
    this.changed(found);
    const { top } = byId("found").getBoundingClientRect();
    // The search box stays in view: the texts are below it, or next to it on a wide screen.
    if (top < 0 || top > 0.7 * innerHeight) byId("columns").scrollIntoView({ block: "start" });
  }

  #item(own, needle) {
    const keptOne = own.find(isKept);
    const text = isPairs ? own[0] : keptOne ?? own[0];
    const copies = own.filter((each) => each !== text);
    const words = fateOf(text) === "" ? counted(copies.length, "identical text", "identical texts") : removableCopies(copies);
    const numbersOf = isPairs ? groups.flatMap(({ members }, number) => (own.some((each) => members.includes(each)) ? [number] : [])) : [groupOf[text]].filter((number) => number !== -1);
    const cosine = cosineWithKept(text);
    const excerpt = excerptOf(text, needle === "" ? [] : occurrences(texts[text], needle));
    return element(
      "li",
      {},
      excerpt,
      element("div", { class: "facts" }, fateOf(text), idOf(text, excerpt.textContent), cosine === null ? null : cosineOf(cosine), numbersOf.length === 0 ? element("span", {}, kind.none) : numbersOf.slice(0, MOST_PAIRS).map((number) => groupButton(number, this.go)), numbersOf.length > MOST_PAIRS ? element("span", {}, `${counted(numbersOf.length - MOST_PAIRS, "more pair", "more pairs")}`) : null, copiesOf(copies, words)),
    );
  }
}

/** Sort texts as the list of groups is: those of the group with the most of them first, its kept text before others; last those in none. Clusters are in turn. */
function sortByGroup(found) {
  const counts = new Map();
  for (const text of found) counts.set(groupOf[text], (counts.get(groupOf[text]) ?? 0) + 1);
  const order = [...counts.keys()].sort((one, two) => (one === -1) - (two === -1) || counts.get(two) - counts.get(one) || one - two);
  const ranks = new Map(order.map((group, rank) => [group, 2 * rank]));
  const seen = new Map();
  const place = new Float64Array(textCount);
  for (const text of found) {
    const group = groupOf[text];
    const turn = isClusters && group !== -1 ? seen.get(group) ?? 0 : 0;
    seen.set(group, turn + 1);
    place[text] = 2 * turn * order.length + ranks.get(group) + (isKept(text) ? 0 : 1);
  }
  found.sort((one, two) => place[one] - place[two]);
}

/** Open the list of groups, which has those of the texts that were found. */
function goToList() {
  showList(true);
  byId("groups-heading").focus({ preventScroll: true });
  showTop(byId("groups"));
}

/** The part of a text around the first of some offsets, which are marked. */
function excerptOf(text, parts) {
  const whole = texts[text];
  const first = parts[0]?.[0] ?? 0;
  const space = whole.indexOf(" ", Math.max(0, first - EXCERPT / 4));
  const from = first < EXCERPT / 4 ? 0 : (space !== -1 && space < first ? space : first); // at the beginning of a word
  const most = Math.min(whole.length, Math.max(from + EXCERPT, parts[0]?.[1] ?? 0));
  const to = most === whole.length ? most : Math.max(whole.lastIndexOf(" ", most), parts[0]?.[1] ?? 0, most - EXCERPT / 4); // at the end of a word
  if (from === 0 && to === whole.length) return textOf(text, parts);
  const inside = parts.filter(([start, end]) => start >= from && end <= to).map((part) => part.map((offset) => offset - from));
  return element("p", { class: "text", dir: "auto" }, from > 0 ? "…" : "", marked(whole.slice(from, to), inside, "mark"), to < whole.length ? "…" : "");
}
