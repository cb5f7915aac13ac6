// The report: texts, groups and points, and the words for each kind of group.

const report = JSON.parse(byId("data").textContent);
const { groups, ids, texts } = report;
const textCount = texts.length;
const shortened = new Set(report.shortened);

const KINDS = {
  pairs: { one: "pair", many: "pairs", heading: "Pairs", none: "in no pair", cosine: "cosine" },
  duplicates: { one: "group", many: "groups", heading: "Near-duplicates", none: "without near-duplicates", cosine: "lowest cosine" },
  clusters: { one: "cluster", many: "clusters", heading: "Clusters", none: "in no cluster", cosine: "mean cosine" },
};
const kind = KINDS[report.kind];
const isPairs = report.kind === "pairs";
const isClusters = report.kind === "clusters";

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

// The first group of each text, -1 for none. A text may be in several pairs.
const groupOf = new Int32Array(textCount).fill(-1);
groups.forEach(({ members }, number) => {
  for (const text of members) if (groupOf[text] === -1) groupOf[text] = number;
});

// Each of the largest groups has its own color. Pairs share one color, because they all have the same size.
const COLORED = 10;
const NO_GROUP = 0;
const OTHER_GROUP = 1;
const FIRST_COLOR = 2;
const colored = isPairs ? [] : groups
  .map((_, number) => number)
  .sort((one, two) => groups[two].size - groups[one].size || one - two)
  .slice(0, COLORED);
const classOfGroup = new Uint8Array(groups.length).fill(isPairs ? FIRST_COLOR : OTHER_GROUP);
colored.forEach((group, place) => { classOfGroup[group] = FIRST_COLOR + place; });
const CLASS_COUNT = FIRST_COLOR + COLORED;
const classOf = Uint8Array.from(groupOf, (group) => (group === -1 ? NO_GROUP : classOfGroup[group]));

// The decimals of cosines in the output of the commands.
const DECIMALS = 5;

// Longer names are shortened to this length.
const NAME_LENGTH = 120;

/** The name of a group. */
function nameOf(number) {
  const name = beginning(groups[number].name, NAME_LENGTH);
  return /^\d*$/.test(name) ? `${kind.one[0].toUpperCase()}${kind.one.slice(1)} ${name || number + 1}` : name;
}

/** The size and the cosine of a group. */
function figuresOf(number) {
  const { size, cosine } = groups[number];
  const shown = `${kind.cosine} ${cosine.toFixed(isClusters ? 3 : DECIMALS)}`;
  return isPairs ? shown : `${counted(size, "text", "texts")}, ${shown}`;
}

/** A title for a text: its beginning, or its id if the text is not known. */
const titleOf = (text, longest) => beginning(texts[text], longest) || label(ids[text]);
