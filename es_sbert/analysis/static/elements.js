// Build elements from names, attributes and text. Text is never parsed as HTML.

const byId = (id) => document.getElementById(id);

/** An HTML element. Attributes that are functions are listeners; `false`, `null` and `undefined` are left out. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/**
 * A list with a button that shows more: `items` are rendered `size` at a time.
 *
 * `tell` is called with the number of shown items and of all items. Returns the function that shows more.
 */
function growingList(list, button, { items, size, render, tell, unit }) {
  let shown = 0;
  const following = () => (items.length - shown <= 1.2 * size ? items.length - shown : size); // no button for a few
  const grow = () => {
    const next = items.slice(shown, shown + following()).map((item, offset) => render(item, shown + offset));
    list.append(...next);
    shown += next.length;
    button.hidden = shown >= items.length;
    const left = following();
    button.textContent = `Show ${numbers.format(left)} more ${left === 1 ? unit[0] : unit[1]}`;
    tell(shown, items.length);
    return next;
  };
  list.replaceChildren();
  button.onclick = () => {
    const [first] = grow();
    // The button may be hidden now and have lost the focus.
    const target = first?.querySelector("button, h3, [tabindex]") ?? first;
    if (target && !target.matches("button")) target.setAttribute("tabindex", "-1");
    target?.focus();
  };
  grow();
  return grow;
}
