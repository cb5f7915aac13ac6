// The list of groups, and the texts of the selected group or of all.

const GROUPS_AT_A_TIME = 100;
const ROWS_AT_A_TIME = 20;
const OVERVIEW_ROWS = 3;

const COMPARISON = ["comparison", "comparisons"];
const textUnit = (number) => (rowsOf(number).length < groups[number].members.length ? ["different text", "different texts"] : ["text", "texts"]);
const GROUP_UNIT = [kind.one, kind.many];

const [LEAST_SHARED, MOST_SHARED, SHARED_SHOWN, SIDE_LENGTH] = [8, 64, 18, 40]; // characters

/** The titles of a pair, from where they differ; one if the texts are identical. */
function sidesOf(members, isId) {
  const own = byText(members).map(([text]) => (isId ? "" : label(untagged(texts[text]))) || label(ids[text]));
  if (own.length < 2) return [beginning(own[0], SIDE_LENGTH)];
  const [one, two] = own;
  let same = 0;
  while (same < one.length && one[same] === two[same]) same += 1;
  const cut = one.slice(0, same).search(/[^\s./(:]*$/u); // at the beginning of a word
  if (cut < LEAST_SHARED) return own.map((side) => beginning(side, SIDE_LENGTH));
  const shared = cut <= MOST_SHARED ? "" : beginning(one, SHARED_SHOWN).replace(/…$/u, "");
  return own.map((side) => `${shared}…${beginning(side.slice(cut), SIDE_LENGTH)}`);
}

/** The names of the texts of a pair: their ids if the texts begin with them. */
const namesOf = ({ members }) => sidesOf(members, members.every((text) => idOf(text) === null)).map((name) => name.replace(/^…/u, ""));

/** The heading of a group as nodes: of a pair with the names of its texts. */
function headingNodes(number) {
  const names = isPairs && !isOneText(number) ? namesOf(groups[number]) : [];
  const words = [headingOf(number), names.join("\u00a0/ ")].filter(Boolean).join(": ");
  return [isPairs ? "" : swatchOf(classOfGroup[number]), words];
}

/** The number of groups with some of these texts. */
function groupsWith(found) {
  const all = new Set(found);
  return groups.filter(({ members }) => members.some((text) => all.has(text))).length;
}

const groupOrder = groups.map((_, number) => number);

/** The list of groups: one tab stop, in which arrow keys move. */
class GroupList {
  #list = byId("group-list");
  #items = []; // by group
  #current = 0;
  #grow;
  #found = null; // texts

  /** `go` is called with a selected group, `look` with the group under the pointer, -1 for none. */
  constructor(go, look) {
    this.go = go;
    this.#list.addEventListener("keydown", (event) => this.#press(event));
    this.#list.addEventListener("mouseover", ({ target }) => look(this.#buttons().indexOf(target.closest("button"))));
    this.#list.addEventListener("mouseleave", () => look(-1));
    this.#list.addEventListener("focusin", ({ target }) => this.#move(this.#buttons().indexOf(target)));
    this.fill();
  }

  /** List all groups in their order. */
  fill() {
    const total = report.total.groups;
    this.#name(total);
    this.#items = [];
    this.#current = groupOrder[0];
    this.#grow = growingList(this.#list, byId("more-groups"), {
      items: groupOrder,
      size: GROUPS_AT_A_TIME,
      unit: GROUP_UNIT,
      render: (number) => this.#item(number),
      tell: (shown) => {
        const left = total - groups.length;
        byId("groups-count").textContent = groups.length === 0
          ? `No ${kind.many} were found.`
          : `${shown < total ? `${numbers.format(shown)} of ${counted(total, ...GROUP_UNIT)} listed.` : ""}${left > 0 ? ` ${counted(left, ...GROUP_UNIT)} ${left === 1 ? "is" : "are"} not on this page.` : ""}`;
      },
    });
    if (this.#found !== null) this.showFound(this.#found);
  }

  /** Show which group is selected; -1 for none. */
  select(number) {
    for (const button of this.#list.querySelectorAll("[aria-pressed=true]")) button.setAttribute("aria-pressed", "false");
    if (number === -1) return;
    while (this.#items[number] === undefined) this.#grow();
    const button = this.#buttons()[number];
    button.setAttribute("aria-pressed", "true");
    this.#move(number);
    // Scroll only the list, not the page.
    const [list, item] = [this.#list.getBoundingClientRect(), button.getBoundingClientRect()];
    if (item.top < list.top) this.#list.scrollTop -= list.top - item.top + 4;
    else if (item.bottom > list.bottom) this.#list.scrollTop += item.bottom - list.bottom + 4;
  }

  focus(number) {
    this.#buttons()[number]?.focus();
  }

  /** Show only groups with some of these texts, and how many, those with the most first; null shows all groups with their sizes. */
  showFound(found) {
    this.#found = found === null ? null : new Set(found);
    const listed = groupOrder.filter((number) => this.#items[number] !== undefined);
    const items = listed.map((number) => ({ item: this.#items[number], count: this.#count(this.#items[number], number) }));
    this.#name(found === null ? report.total.groups : groupsWith(found));
    if (found !== null && !isPairs) items.sort((one, two) => two.count - one.count);
    this.#list.append(...items.map(({ item }) => item));
    if (this.#buttons()[this.#current]?.parentElement.hidden) this.#move(this.#buttons().indexOf(this.#shown()[0]));
  }

  /** The heading, with the number of groups, or of those with texts that were found. */
  #name(shown) {
    const all = numbers.format(report.total.groups);
    byId("groups-heading").textContent = `${kind.heading} (${shown < report.total.groups ? `${numbers.format(shown)} of ` : ""}${all})`;
  }

  #item(number) {
    const { size, cosine } = groups[number];
    const item = element("li", {}, element(
      "button",
      { type: "button", class: "group", "aria-pressed": "false", tabindex: number === this.#current ? "0" : "-1", click: (event) => this.go(number, event.detail === 0) },
      isPairs ? element("span", { class: "number" }, numbers.format(number + 1)) : swatchOf(classOfGroup[number]),
      (isPairs ? namesOf(groups[number]) : [nameOf(number)]).map((name) => element("span", { class: "name", dir: "auto" }, breakable(name))),
      isPairs
        ? element("span", { class: "figures" }, isOneText(number) ? figuresOf(number) : cosine.toFixed(DECIMALS))
        : element("span", { class: "figures" }, element("span"), isClusters ? element("span", { class: "track", "aria-hidden": "true" }, element("span", { class: "size" })) : null),
    ));
    if (isClusters) item.querySelector(".size").style.width = `${(100 * size) / groups[bySize[0]].size}%`;
    this.#items[number] = item;
    this.#count(item, number);
    return item;
  }

  #count(item, number) {
    const { size, members, cosine } = groups[number];
    const count = this.#found === null ? size : members.filter((text) => this.#found.has(text)).length;
    item.hidden = count === 0;
    if (isPairs) return count;
    const [words, bar] = item.querySelector(".figures").children;
    const figures = this.#found !== null ? `${numbers.format(count)} of ${counted(size, "text", "texts")}` : isClusters ? counted(size, "text", "texts") : isOneText(number) ? figuresOf(number) : `${counted(size, "text", "texts")}, lowest ${cosine.toFixed(DECIMALS)}${isChain(number) ? " via others" : ""}`;
    words.replaceChildren(...(isClusters ? [] : [element("strong", {}, headingOf(number)), " · "]), figures);
    if (isClusters) bar.hidden = this.#found !== null; // it compares sizes
    return count;
  }

  #buttons() {
    return this.#items.map((item) => item.firstElementChild);
  }

  /** The buttons that are shown, from top to bottom. */
  #shown() {
    return [...this.#list.querySelectorAll("li:not([hidden]) > button")];
  }

  #move(number) {
    if (number < 0 || number === this.#current) return;
    const buttons = this.#buttons();
    buttons[this.#current]?.setAttribute("tabindex", "-1");
    buttons[number].setAttribute("tabindex", "0");
    this.#current = number;
  }

  #press(event) {
    const shown = this.#shown();
    const [at, last] = [shown.indexOf(this.#buttons()[this.#current]), shown.length - 1];
    const targets = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last };
    if (!(event.key in targets) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    shown[Math.max(0, Math.min(last, targets[event.key]))].focus();
  }
}

/** Show the texts of one group, or the first ones of every group. */
function showDetails(number, go) {
  const [heading, note, body, more] = ["details-heading", "details-note", "details-body", "more-details"].map(byId);
  for (const button of ["show-all", "previous", "next"].map(byId)) button.hidden = number === -1;
  byId("show-map").textContent = number === -1 ? "Show map" : "Show on map";
  byId("show-map").hidden = isPairs || textCount === 0 || (isClusters && number === -1);
  const place = groupOrder.indexOf(number);
  byId("previous").disabled = place === 0;
  byId("next").disabled = place === groups.length - 1;
  byId("show-all").textContent = `← All ${kind.many}`;
  const say = (words, hasMarks = !isClusters) => note.replaceChildren(words, ...(hasMarks ? [" ", element("span", { class: "key" }, element("del", {}, `only in the ${kind.sides[0]}`), " ", element("ins", {}, `only in the ${kind.sides[1]}`))] : []));
  if (number !== -1) {
    heading.replaceChildren(...headingNodes(number));
    const list = element("ol", { class: "texts" });
    body.replaceChildren(list);
    growingList(list, more, {
      items: rowsOf(number),
      size: ROWS_AT_A_TIME,
      unit: isClusters ? textUnit(number) : COMPARISON,
      render: (places) => rowOf(number, places),
      tell: (shown) => {
        say(`${factsOf(number)}. ${membersNote(number, shown)}`, !isClusters && !isOneText(number));
      },
    });
    return;
  }
  heading.textContent = `All ${kind.many}`;
  growingList(body, more, {
    items: groupOrder,
    size: ROWS_AT_A_TIME,
    unit: GROUP_UNIT,
    render: (each) => overviewOf(each, go),
    tell: (shown) => {
      if (groups.length === 0) say(`No ${kind.many} were found.`, false);
      else say(`${shown < report.total.groups ? `${numbers.format(shown)} of ` : ""}${counted(report.total.groups, ...GROUP_UNIT)}${isPairs ? " shown" : isClusters ? `, the ${OVERVIEW_ROWS} most typical texts of each, by cosine with its mean` : ", each with its least similar texts"}.`);
    },
  });
}

function overviewOf(number, go) {
  const rows = rowsOf(number);
  const most = OVERVIEW_ROWS + (isClusters ? 0 : 1); // the kept text
  return element(
    "section",
    { class: "overview" },
    element("h3", { dir: "auto" }, headingNodes(number)),
    element("p", { class: "note" }, factsOf(number)),
    element("ol", { class: "texts" }, rows.slice(0, most).map((places) => rowOf(number, places))),
    rows.length > most ? element(
      "div",
      { class: "tools" },
      element("button", { type: "button", class: "small", click: (event) => go(number, event.detail === 0) }, `Open the ${kind.one} (${counted(rows.length - (isClusters ? 0 : 1), ...(isClusters ? textUnit(number) : COMPARISON))})`),
    ) : null,
  );
}

/** Show the legend of the map: numbers, and the texts in no group, which no list holds. The list of groups shows the other colors. */
function showLegend(goToUngrouped) {
  const left = report.total.texts - report.total.grouped;
  if (!isClusters && groups.length > 0) byId("legend").append(element("li", {}, "Number: group. Larger: more identical texts."));
  if (left > 0) byId("legend").append(element("li", {}, element(
    "button",
    { type: "button", class: "link", click: goToUngrouped },
    swatchOf(NO_GROUP),
    `${kind.none} (${numbers.format(left)})`,
  )));
}
