// A map of the hits: points from the gateway, drawn as a list of options that arrow keys move through.

import { drawing, element } from "./dom.js";
import { cosineText } from "./numbers.js";

// About the size of the drawing in pixels, so that its text is as large as the page's.
const WIDTH = 360;
const LEAST_HEIGHT = 240;
const MARGIN = 24;
const RADIUS = 7;
const UNIT = WIDTH / 2 - MARGIN; // both axes have the same

const KINDS = {
  lexical: "lexical hit",
  semantic: "semantic hit",
  both: "lexical and semantic hit",
  other: "hybrid hit only",
};

/**
 * Draw the map.
 *
 * `points` are `{key, x, y, title, cosine, kind}` with x and y in [-1, 1]; `origin` is the position of the query. `show` is
 * called with a point to show its hit, `tell` with the announcement for the current one.
 */
export function mapOf(points, origin, originLabel, show, tell) {
  const height = Math.max(LEAST_HEIGHT, 2 * (UNIT * Math.max(...[origin, ...points].map(({ y }) => Math.abs(y))) + MARGIN));
  const at = ({ x, y }) => [WIDTH / 2 + x * UNIT, height / 2 - y * UNIT];
  const shapes = points.map((point) => shapeOf(point, at(point)));
  const list = drawing(
    "svg",
    { class: "map", viewBox: `0 0 ${WIDTH} ${height}`, role: "listbox", "aria-labelledby": "map-heading", "aria-describedby": "map-help" },
    shapes,
    originOf(at(origin), originLabel),
  );
  let current = 0;
  const look = (next, focus) => {
    shapes[current].setAttribute("tabindex", "-1");
    shapes[current].setAttribute("aria-selected", "false");
    current = next;
    shapes[current].setAttribute("tabindex", "0");
    shapes[current].setAttribute("aria-selected", "true");
    if (focus) shapes[current].focus();
    tell(labelOf(points[current]));
  };
  shapes.forEach((shape, number) => {
    shape.addEventListener("focus", () => { if (number !== current) look(number, false); else tell(labelOf(points[number])); });
    shape.addEventListener("pointerenter", () => look(number, false));
    shape.addEventListener("click", () => show(points[number]));
  });
  list.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") show(points[current]);
    else if (event.key === "Home") look(0, true);
    else if (event.key === "End") look(points.length - 1, true);
    else if (event.key in DIRECTIONS) look(neighbor(points, current, DIRECTIONS[event.key]), true);
    else return;
    event.preventDefault();
  });
  if (shapes.length > 0) look(0, false);
  return [list, legendOf(points)];
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** The number of the nearest point in a direction, sideways distance counting double; the same point if there is none. */
export function neighbor(points, current, [right, up]) {
  const from = points[current];
  let best = current;
  let least = Infinity;
  points.forEach((point, number) => {
    const [dx, dy] = [point.x - from.x, point.y - from.y];
    const ahead = dx * right + dy * up;
    const aside = Math.abs(dx * up) + Math.abs(dy * right);
    // Points at the same position are ordered, so that the keyboard can move between them.
    const level = dx === 0 && dy === 0 && (right + up > 0 ? number > current : number < current);
    const distance = level ? 0 : ahead + 2 * aside;
    if ((ahead > 0 && aside <= 2 * ahead || level) && distance < least) [best, least] = [number, distance];
  });
  return best;
}

const labelOf = ({ title, cosine, kind }) => `${title}, cosine ${cosineText(cosine)}, ${KINDS[kind]}`;

function shapeOf(point, [x, y]) {
  const attributes = {
    class: `point ${point.kind}`, role: "option", tabindex: "-1", "aria-selected": "false",
    "aria-label": labelOf(point), "data-key": point.key,
  };
  return outline(point.kind, x, y, RADIUS, attributes);
}

/** A different shape for each kind, so that colors need not be distinguished. */
function outline(kind, x, y, r, attributes) {
  if (kind === "lexical") return drawing("rect", { ...attributes, x: x - r, y: y - r, width: 2 * r, height: 2 * r });
  if (kind === "semantic") return drawing("circle", { ...attributes, cx: x, cy: y, r });
  const corners = kind === "both"
    ? [[0, -1.35], [1.35, 0], [0, 1.35], [-1.35, 0]]
    : [[0, -1.1], [1.1, 0.9], [-1.1, 0.9]];
  return drawing("polygon", { ...attributes, points: corners.map(([dx, dy]) => `${x + dx * r},${y + dy * r}`).join(" ") });
}

function originOf([left, top], label) {
  const anchor = left > 0.6 * WIDTH ? "end" : "start";
  return drawing(
    "g",
    { "aria-hidden": "true" },
    drawing("path", { class: "origin", d: `M${left - 9},${top}h18M${left},${top - 9}v18` }),
    drawing("text", { x: left + (anchor === "end" ? -10 : 10), y: top - 6, "text-anchor": anchor }, label),
  );
}

function legendOf(points) {
  const used = Object.entries(KINDS).filter(([kind]) => points.some((point) => point.kind === kind));
  return element(
    "ul",
    { class: "legend", "aria-label": "Legend" },
    used.map(([kind, words]) => element(
      "li",
      {},
      drawing("svg", { viewBox: "-10 -10 20 20", "aria-hidden": "true" }, outline(kind, 0, 0, RADIUS, { class: `point ${kind}` })),
      words,
    )),
  );
}
