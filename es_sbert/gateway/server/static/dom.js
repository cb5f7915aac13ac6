// Elements made from names, attributes and text. Nothing on the page parses text as HTML.

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** Whether a screen has room for all lists of hits. */
export const isWide = matchMedia("(min-width: 75rem)");

/** An HTML element. Attributes that are functions are listeners; `false`, `null` and `undefined` are left out. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(attribute, value);
    else if (value === true) made.setAttribute(attribute, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(attribute, value);
  }
  made.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}
