// The report: texts, groups and points, and the words for each kind of group.

const report = JSON.parse(byId("data").textContent);
const { groups, ids, texts } = report;
const textCount = texts.length;
const shortened = new Set(report.shortened);

const KINDS = {
  pairs: { one: "pair", many: "pairs", heading: "Pairs", none: "in no listed pair", cosine: "cosine", sides: ["first", "second"] },
  duplicates: { one: "group", many: "groups", heading: "Groups", none: "without near-duplicates", cosine: "lowest cosine", sides: ["kept text", "near-duplicate"] },
  clusters: { one: "cluster", many: "clusters", heading: "Clusters", none: "in no cluster", cosine: "mean cosine" },
};
const kind = KINDS[report.kind];
const isPairs = report.kind === "pairs";
const isClusters = report.kind === "clusters";

document.body.dataset.kind = report.kind;
const onOneColumn = matchMedia("(max-width: 47.99rem)");
const x = new Float32Array(textCount);
const y = new Float32Array(textCount);
{
  const bytes = atob(report.points);
  const value = (at) => (bytes.charCodeAt(2 * at) | (bytes.charCodeAt(2 * at + 1) << 8)) / 65535;
  for (let text = 0; text < textCount; text += 1) {
    x[text] = value(2 * text);
    y[text] = 1 - value(2 * text + 1); // downwards, as on a screen
  }
}

// The size of each text's point: 0 for one text, then 1 more for twice as many texts at the same place.
const STACKED = 4; // the largest: 16 texts or more
const stacks = new Uint8Array(textCount);
{
  const places = Map.groupBy(stacks.keys(), (text) => Math.round(65535 * x[text]) * 65536 + Math.round(65535 * y[text]));
  for (const same of places.values()) for (const text of same) stacks[text] = Math.min(STACKED, Math.floor(Math.log2(same.length)));
}

const sizes = [...new Set(stacks)].sort().reverse();

// The first group of each text, -1 for none. A text may be in several pairs.
const groupOf = new Int32Array(textCount).fill(-1);
groups.forEach(({ members }, number) => {
  for (const text of members) if (groupOf[text] === -1) groupOf[text] = number;
});

// Groups take the color whose groups, and those with a similar color, are the farthest; after each round of colors, its next shape. Pairs share one color.
const SIMILAR = [0, 1, 2, 3, 3, 0, 1, 2, 1, 0]; // family of each color: blue, brown, green, purple
const COLORS = SIMILAR.length;
const SHAPES = 4; // disc, square, triangle, diamond
const NO_GROUP = 0;
const FIRST_COLOR = 1;
const CLASS_COUNT = FIRST_COLOR + COLORS * SHAPES;
const bySize = groups.map((_, number) => number).sort((one, two) => groups[two].size - groups[one].size || one - two);
const classOfGroup = new Uint8Array(groups.length).fill(FIRST_COLOR);
const colorOf = (number) => (number === NO_GROUP ? NO_GROUP : FIRST_COLOR + ((number - FIRST_COLOR) % COLORS));
const shapeOf = (number) => (number === NO_GROUP ? 0 : Math.floor((number - FIRST_COLOR) / COLORS));
const mean = (axis, group) => groups[group].members.reduce((sum, text) => sum + axis[text], 0) / groups[group].members.length;
const farthest = (group, others) => {
  const round = others.slice(others.length - (others.length % COLORS)); // a color is used once in a round
  const room = Array.from({ length: COLORS }, (_, color) => (round.some((other) => colorOf(classOfGroup[other]) === FIRST_COLOR + color) ? -1 : Infinity));
  const [right, down] = [mean(x, group), mean(y, group)];
  for (const other of others) {
    const taken = colorOf(classOfGroup[other]) - FIRST_COLOR;
    const apart = Math.hypot(right - mean(x, other), down - mean(y, other));
    SIMILAR.forEach((family, color) => {
      if (family === SIMILAR[taken]) room[color] = Math.min(room[color], color === taken ? apart : 1.5 * apart);
    });
  }
  return room.indexOf(Math.max(...room));
};
if (!isPairs) bySize.forEach((group, place) => {
  const color = place >= 200 ? place % COLORS : farthest(group, bySize.slice(0, place)); // many groups are small
  classOfGroup[group] = FIRST_COLOR + color + COLORS * (Math.floor(place / COLORS) % SHAPES);
});
const classOf = Uint8Array.from(groupOf, (group) => (group === -1 ? NO_GROUP : classOfGroup[group]));

const DECIMALS = 3; // of cosines

// Longer names are shortened to this length.
const NAME_LENGTH = 120;
const TITLE_LENGTH = 80;

/** The name of a group; one that has only a number is called by its first text. */
function nameOf(number) {
  if (isPairs) return headingOf(number);
  const { name, members, kept } = groups[number];
  return /^\d*$/.test(name) ? titleOf(kept ?? members[0], TITLE_LENGTH) : beginning(name, NAME_LENGTH);
}

/** The heading of a group: the name of a cluster, or a number. */
const headingOf = (number) => (isClusters ? nameOf(number) : `${isPairs ? "Pair" : "Group"} ${numbers.format(number + 1)}`);

/** The color and the shape that the points of a class have on the map. */
const swatchOf = (number) => element("span", { class: `swatch c${colorOf(number)} s${shapeOf(number)}`, "aria-hidden": "true" });

/** Whether all texts of a group are identical. */
const isOneText = (number) => byText(groups[number].members).length === 1;

/** The size and the cosine of a group. */
function figuresOf(number) {
  const { size, cosine } = groups[number];
  if (!isClusters && isOneText(number)) return counted(size, "identical text", "identical texts");
  const shown = `${kind.cosine} ${cosine.toFixed(DECIMALS)}`;
  return isPairs && size === 2 ? shown : `${counted(size, "text", "texts")}, ${shown}`;
}

/** A title for a text: its beginning, or its id if the text is not known. */
const titleOf = (text, longest) => beginning(untagged(texts[text]), longest) || label(ids[text]);

/** Items whose texts are identical, together, in the order of the first of each. `textAt` gives the text of an item. */
function byText(items, textAt = (item) => item) {
  const found = new Map();
  for (const item of items) {
    const text = textAt(item);
    const key = texts[text] === "" || shortened.has(text) ? text : texts[text];
    if (found.has(key)) found.get(key).push(item);
    else found.set(key, [item]);
  }
  return [...found.values()];
}
