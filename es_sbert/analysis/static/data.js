// The report: texts, groups and points, and the words for each kind of group.

const report = JSON.parse(byId("data").textContent);
const { groups, ids, texts } = report;
const textCount = texts.length;
const shortened = new Set(report.shortened);

const KINDS = {
  pairs: { one: "pair", many: "pairs", heading: "Pairs", none: "in no pair", cosine: "cosine", sides: ["first", "second"] },
  duplicates: { one: "group", many: "groups", heading: "Near-duplicates", none: "without near-duplicates", cosine: "lowest cosine", sides: ["kept text", "near-duplicate"] },
  clusters: { one: "cluster", many: "clusters", heading: "Clusters", none: "in no cluster", cosine: "mean cosine" },
};
const kind = KINDS[report.kind];
const isPairs = report.kind === "pairs";
const isClusters = report.kind === "clusters";

document.body.dataset.kind = report.kind;
const frame = byId("map-frame").getBoundingClientRect();
// The axes of the map mean nothing: it fills its frame. A shape of points is stretched to twice its height at most.
const FRAMED = 20; // margin in pixels around the fitted points
const FLAT = Math.max(0.35, Math.min(1.2, (frame.height - 2 * FRAMED) / (frame.width - 2 * FRAMED)));
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
  for (const axis of [x, y]) {
    const low = axis.reduce((least, each) => Math.min(least, each), 1);
    const extent = axis.reduce((most, each) => Math.max(most, each), 0) - low;
    const by = Math.min(2, 1 / Math.max(extent, 1e-6));
    axis.forEach((each, text) => { axis[text] = (each - low - extent / 2) * by + 0.5; });
  }
}

// The first group of each text, -1 for none. A text may be in several pairs.
const groupOf = new Int32Array(textCount).fill(-1);
groups.forEach(({ members }, number) => {
  for (const text of members) if (groupOf[text] === -1) groupOf[text] = number;
});

// The largest groups have a color each; others take the color whose groups are the farthest. Pairs share one color.
const COLORS = 10;
const NO_GROUP = 0;
const FIRST_COLOR = 1;
const CLASS_COUNT = FIRST_COLOR + COLORS;
const bySize = groups.map((_, number) => number).sort((one, two) => groups[two].size - groups[one].size || one - two);
const classOfGroup = new Uint8Array(groups.length).fill(FIRST_COLOR);
const mean = (axis, group) => groups[group].members.reduce((sum, text) => sum + axis[text], 0) / groups[group].members.length;
if (!isPairs) bySize.forEach((group, place) => {
  classOfGroup[group] = FIRST_COLOR + (place % COLORS);
  if (place < COLORS || place >= 200) return; // many groups are small
  const [room, right, down] = [new Array(COLORS).fill(Infinity), mean(x, group), mean(y, group)];
  for (const other of bySize.slice(0, place)) {
    const color = classOfGroup[other] - FIRST_COLOR;
    room[color] = Math.min(room[color], Math.hypot(right - mean(x, other), down - mean(y, other)));
  }
  classOfGroup[group] = FIRST_COLOR + room.indexOf(Math.max(...room));
});
y.forEach((each, text) => { y[text] = FLAT * each; }); // colors are the same in a frame of any shape
const classOf = Uint8Array.from(groupOf, (group) => (group === -1 ? NO_GROUP : classOfGroup[group]));

const DECIMALS = 3; // of cosines

// Longer names are shortened to this length.
const NAME_LENGTH = 120;
const TITLE_LENGTH = 80;
const HEADING_LENGTH = 240; // a text up to this length is the heading of its group, and is not shown below it

/** The name of a group; one that has only a number is called by its first text. */
function nameOf(number, longest = TITLE_LENGTH) {
  if (isPairs) return `Pair ${numbers.format(number + 1)}`;
  const { name, members, kept } = groups[number];
  return /^\d*$/.test(name) ? titleOf(kept ?? members[0], longest) : beginning(name, NAME_LENGTH);
}

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
