// The request of a column, to copy.

import { element } from "./dom.js";
import { askPage } from "./engine.js";

/**
 * A folded part of the page that shows a search's body: `written` for the gateway in this `mode` (null if it cannot be
 * expressed in its syntax), and `engine` (a body, or a function that fetches one), which can be sent to the engine itself.
 */
export function requestOf(index, written, engine, mode = "on") {
  const direct = element("div", {}, "Loading…");
  const details = element(
    "details",
    { class: "request" },
    element("summary", {}, "Request body"),
    written === null ? null : shown(index, written, "Through the gateway", `X-Es-Sbert: ${mode}`),
    direct,
  );
  let loaded = false;
  details.addEventListener("toggle", async () => {
    if (!details.open || loaded) return;
    loaded = true;
    try {
      const body = typeof engine === "function" ? await engine() : engine;
      direct.replaceChildren(shown(index, body, "Directly to the engine"));
    } catch (error) {
      loaded = false; // opened again, it tries again
      direct.replaceChildren(element("p", { class: "warning" }, error.message));
    }
  });
  return details;
}

/** Fetch the body that the gateway makes from another. */
export const rewritten = (index, body, mode) => async () => (await askPage("body", { index, body, mode })).body;

/** `header` is the header to send with it, in case the gateway has another default. */
function shown(index, body, heading, header) {
  const text = JSON.stringify(body, null, 2);
  const said = element("span", { role: "status", class: "note" });
  const place = element("pre", { tabindex: "0", "aria-label": `${heading}: body` }, text);
  const copy = async () => {
    said.textContent = (await copied(text, place)) ? " Copied." : " Press Ctrl+C: the text is selected.";
  };
  return element(
    "div",
    {},
    element(
      "div",
      { class: "copied" },
      element("p", {}, `${heading}: `, element("code", {}, `POST /${index}/_search`), " ", header === undefined ? null : element("code", {}, header), said),
      element("button", { type: "button", click: copy }, "Copy"),
    ),
    place,
  );
}

/** Whether the text was copied; if the browser does not allow it, the text is selected. */
export async function copied(text, place) {
  if (navigator.clipboard !== undefined) { // only on https and this machine
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (error) {
      if (error.name !== "NotAllowedError") throw error;
    }
  }
  getSelection().selectAllChildren(place);
  place.focus();
  return false;
}
