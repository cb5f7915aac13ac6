// The list of groups, and the texts of the selected group or of all.

const GROUPS_AT_A_TIME = 100;
const ROWS_AT_A_TIME = 20;
const OVERVIEW_ROWS = 3;

const GROUP_UNIT = [kind.one, kind.many];

const [LEAST_SHARED, MOST_SHARED, SHARED_SHOWN, SIDE_LENGTH] = [16, 64, 18, 80]; // characters

/** The titles of a pair, from where they differ; one if the texts are identical. */
function sidesOf(members) {
  const own = byText(members).map(([text]) => label(untagged(texts[text])) || label(ids[text]));
  if (own.length < 2) return [beginning(own[0], SIDE_LENGTH)];
  const [one, two] = own;
  let same = 0;
  while (same < one.length && one[same] === two[same]) same += 1;
  const cut = one.slice(0, same).search(/[^\s./(:]*$/u); // at the beginning of a word
  if (cut < LEAST_SHARED) return own.map((side) => beginning(side, SIDE_LENGTH));
  const shared = cut <= MOST_SHARED ? "" : beginning(one, SHARED_SHOWN).replace(/…$/u, "");
  return own.map((side) => `${shared}…${beginning(side.slice(cut), SIDE_LENGTH)}`);
}

/** The list of groups: one tab stop, in which arrow keys move. */
class GroupList {
  #list = byId("group-list");
  #current = 0;
  #grow;

  /** `go` is called with a selected group, `look` with the group under the pointer, -1 for none. */
  constructor(go, look) {
    const total = report.total.groups;
    byId("groups-heading").textContent = kind.heading;
    this.#grow = growingList(this.#list, byId("more-groups"), {
      items: groups.map((_, number) => number),
      size: GROUPS_AT_A_TIME,
      first: onOneColumn.matches ? 3 : GROUPS_AT_A_TIME, // the map is below the list
      unit: GROUP_UNIT,
      render: (number) => element("li", {}, this.#button(number, go)),
      tell: (shown) => {
        const left = total - groups.length;
        byId("groups-count").textContent = groups.length === 0
          ? `No ${kind.many} were found.`
          : `${numbers.format(shown)} of ${counted(total, ...GROUP_UNIT)} listed.${left > 0 ? ` ${counted(left, ...GROUP_UNIT)} ${left === 1 ? "is" : "are"} not on this page.` : ""}`;
      },
    });
    this.#list.addEventListener("keydown", (event) => this.#press(event));
    this.#list.addEventListener("mouseover", ({ target }) => look(this.#buttons().indexOf(target.closest("button"))));
    this.#list.addEventListener("mouseleave", () => look(-1));
    this.#list.addEventListener("focusin", ({ target }) => this.#move(this.#buttons().indexOf(target)));
  }

  /** Show which group is selected; -1 for none. */
  select(number) {
    for (const button of this.#list.querySelectorAll("[aria-pressed=true]")) button.setAttribute("aria-pressed", "false");
    if (number === -1) return;
    while (this.#buttons().length <= number) this.#grow();
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

  #button(number, go) {
    const { size, members, cosine } = groups[number];
    const largest = groups[bySize[0]].size;
    const bar = element("span", { class: "size", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, (100 * size) / largest)}%`;
    return element(
      "button",
      { type: "button", class: "group", "aria-pressed": "false", tabindex: number === this.#current ? "0" : "-1", click: (event) => go(number, event.detail === 0) },
      element("span", { class: `swatch c${classOfGroup[number]}`, "aria-hidden": "true" }),
      (isPairs ? sidesOf(members) : [nameOf(number)]).map((name) => element("span", { class: "name", dir: "auto" }, breakable(name))),
      element("span", { class: "figures" }, isPairs && !isOneText(number) ? cosine.toFixed(DECIMALS) : figuresOf(number), isPairs ? null : element("span", { class: "track", "aria-hidden": "true" }, bar)),
    );
  }

  #buttons() {
    return [...this.#list.querySelectorAll("button")];
  }

  #move(number) {
    if (number < 0 || number === this.#current) return;
    const buttons = this.#buttons();
    buttons[this.#current]?.setAttribute("tabindex", "-1");
    buttons[number].setAttribute("tabindex", "0");
    this.#current = number;
  }

  #press(event) {
    const last = this.#buttons().length - 1;
    const targets = { ArrowDown: this.#current + 1, ArrowUp: this.#current - 1, Home: 0, End: last };
    if (!(event.key in targets) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.#buttons()[Math.max(0, Math.min(last, targets[event.key]))].focus();
  }
}

/** Show the texts of one group, or the first ones of every group. */
function showDetails(number, go) {
  const [heading, note, body, more] = ["details-heading", "details-note", "details-body", "more-details"].map(byId);
  byId("show-all").hidden = number === -1;
  byId("show-all").textContent = `← All ${kind.many}`;
  const hint = isClusters || (number !== -1 && isOneText(number)) ? "" : " Underlined words are on one side only.";
  if (number !== -1) {
    heading.textContent = headingOf(number);
    const list = element("ol", { class: isClusters ? "texts" : "comparisons" });
    body.replaceChildren(list);
    growingList(list, more, {
      items: rowsOf(number),
      size: ROWS_AT_A_TIME,
      unit: isClusters ? ["text", "texts"] : ["comparison", "comparisons"],
      render: (places) => rowOf(number, places),
      tell: (shown) => {
        note.textContent = isPairs ? hint.trim() : `${figuresOf(number)[0].toUpperCase()}${figuresOf(number).slice(1)}. ${membersNote(number, shown)}${hint}`;
      },
    });
    return;
  }
  heading.textContent = `All ${kind.many}`;
  growingList(body, more, {
    items: groups.map((_, each) => each),
    size: ROWS_AT_A_TIME,
    unit: GROUP_UNIT,
    render: (each) => overviewOf(each, go),
    tell: (shown) => {
      note.textContent = groups.length === 0
        ? `No ${kind.many} were found.`
        : `${numbers.format(shown)} of ${counted(report.total.groups, ...GROUP_UNIT)} shown${isPairs ? "" : `, up to ${OVERVIEW_ROWS} ${isClusters ? "texts" : "comparisons"} each`}.${hint}`;
    },
  });
}

function overviewOf(number, go) {
  const rows = rowsOf(number);
  const left = rows.length - Math.min(rows.length, OVERVIEW_ROWS);
  return element(
    "section",
    { class: "overview" },
    element("h3", { dir: "auto" }, element("span", { class: `swatch c${classOfGroup[number]}`, "aria-hidden": "true" }), headingOf(number)),
    isPairs ? null : element("p", { class: "note" }, figuresOf(number)),
    element("ol", { class: isClusters ? "texts" : "comparisons" }, rows.slice(0, OVERVIEW_ROWS).map((places) => rowOf(number, places))),
    left > 0 ? element("p", {}, groupButton(number, go, `Show all ${numbers.format(rows.length)}`)) : null,
  );
}

/** Show the legend of the map: the texts in no group, which no list holds. The list of groups shows the other colors. */
function showLegend(goToUngrouped) {
  const left = report.total.texts - report.total.grouped;
  if (left > 0) byId("legend").replaceChildren(element("li", {}, element(
    "button",
    { type: "button", class: "link", click: goToUngrouped },
    element("span", { class: `swatch c${NO_GROUP}`, "aria-hidden": "true" }),
    `${kind.none} (${numbers.format(left)})`,
  )));
}
