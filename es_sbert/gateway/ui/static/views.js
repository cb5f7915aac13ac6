// Narrow screens have room for one column: a row of buttons selects it. Wide ones show all, and the style hides the row.

import { byId, element } from "./dom.js";

let chosen = null; // name of the column that was chosen last

/** Show the buttons of these columns, and the column that was chosen before, or the first. */
export function offerViews(columns) {
  byId("views").hidden = columns.length < 2;
  byId("views").replaceChildren(...columns.map(({ name, heading }) => element(
    "button",
    { type: "button", "data-view": name, click: () => { chosen = name; show(name); } },
    `${heading} `,
    element("span", { class: "count" }),
  )));
  show((columns.find(({ name }) => name === chosen) ?? columns[0]).name);
}

/** Show a column on a screen with room for one. */
function show(name) {
  for (const button of byId("views").children) button.setAttribute("aria-pressed", `${button.dataset.view === name}`);
  for (const section of byId("columns").children) section.classList.toggle("current", section.dataset.name === name);
}

/** Show the number of documents that a column has found. */
export function countView(name, total) {
  const button = byId("views").querySelector(`[data-view="${name}"] .count`);
  button.replaceChildren(total);
}
