// Labels of the map: each is where a reader takes it for the name of its group's points.

const [LABEL_LENGTH, NARROW_LABEL] = [30, 20]; // characters
const LABEL_LINE = 18; // height of a label in pixels
const CELL = 3; // pixels
const EDGE = 6; // pixels between a label and the side of the map
const SAMPLED = 60; // texts of a group
const AROUND = 12; // pixels around a label in which a reader looks for its points
const NEXT = 24; // pixels between a label and its points that need no line
const LONGEST = 50; // pixels of a line
const APART = 5; // pixels between labels
const FARTHEST = 60; // pixels between a label and the middle of its group, or its highest point
const MOST_NUMBERS = 4; // in the label of groups at one place
const OWN_SHARE = 0.45; // of the points around a label, the least share that must be its own
const ASIDE = [0, -0.5, 0.5, -1, 1, -1.25, 1.25, -1.5, 1.5, -2.5, 2.5, -4, 4]; // label widths from the middle of a group

// Keywords that narrow maps show, by group: the first one of the name that no larger group shows.
const keywords = new Map();
if (isClusters) {
  const used = new Set();
  for (const group of bySize) {
    const words = nameOf(group).split(", ");
    keywords.set(group, words.find((word) => !used.has(word)) ?? words[0]);
    used.add(keywords.get(group));
  }
}

/** The names of groups at one place as labels of a map of this width, the longest first: keywords of a cluster, or numbers. */
function labelsOf(together, width, isWhole) {
  const [group] = together;
  if (!isClusters && !isWhole) return [headingOf(group)];
  if (!isClusters) return [`${together.slice(0, MOST_NUMBERS).map((each) => numbers.format(each + 1)).join(", ")}${together.length > MOST_NUMBERS ? ", …" : ""}`];
  const short = beginning(keywords.get(group), NARROW_LABEL);
  return width < 600 ? [short] : [beginning(nameOf(group).split(", ").slice(0, 2).join(", "), LABEL_LENGTH), short];
}

/** Groups of near-duplicates with the smaller ones whose points cover theirs, the largest first; each cluster alone. */
function togetherOf(all, at, radius) {
  const places = [];
  for (const { group, members } of all) {
    const own = members.map(at);
    const under = isClusters ? undefined : places.find(({ middle }) => own.every((position) => Math.hypot(position[0] - middle[0], position[1] - middle[1]) <= 2.5 * radius));
    if (under === undefined) places.push({ together: [group], members: [...members], middle: isClusters ? null : middleOf(own) });
    else {
      under.together.push(group);
      under.members.push(...members);
    }
  }
  return places;
}

/**
 * Place labels so that none overlaps another or is taken for the name of other points.
 *
 * `wanted` has groups with their `members` and `names`, words with their width, the longest first; `at` gives the position of
 * a text. Clusters of the whole map may have labels on points: those that lie apart come first, and a label that would be taken
 * for another cluster's is left out. Else groups come in their order, no label hides a text, and `to` is a line from a label to
 * its points if others are nearer.
 */
function placeLabels(wanted, texts, at, { width, height, radius, isWhole }) {
  const countIn = countsOf(texts, at, width, height);
  const largest = Math.max(...wanted.map(({ members }) => members.length));
  const mayHide = isWhole && isClusters;
  const candidates = ({ group, isShared, members, names }) => {
    const own = members.filter((_, place) => place % Math.ceil(members.length / SAMPLED) === 0).map(at);
    const each = members.length / own.length; // texts for each sampled one
    const cells = own.map((position) => position.map(cellOf));
    const ownIn = (box) => each * countOwn(cells, box);
    const foreignIn = (box) => Math.max(0, countIn(box) - ownIn(box));
    // Of the most central texts, or where most were found.
    const [atX, atY] = isWhole ? middleOf(own.slice(0, Math.ceil(own.length / 3))) : mostOf(own, (position) => ownIn(boxAround(position, AROUND)) ** 2 / Math.max(1, countIn(boxAround(position, AROUND))));
    if (atX < 0 || atX > width || atY < 0 || atY > height) return []; // not in view
    const farthest = mayHide ? FARTHEST : Math.max(FARTHEST, atY - Math.min(...own.map(([, down]) => Math.max(0, down))) + LABEL_LINE);
    return names.map(({ words, wide }) => {
      const places = [];
      for (let down = -farthest; down <= farthest; down += LABEL_LINE / 3) {
        for (const part of mayHide ? ASIDE.slice(0, 5) : ASIDE) {
          const [middle, line] = [Math.max(wide / 2 + EDGE, Math.min(width - wide / 2 - EDGE, atX + part * (wide / 2 + AROUND))), atY + down];
          const box = { left: middle - wide / 2, right: middle + wide / 2, top: line - LABEL_LINE / 2, bottom: line + LABEL_LINE / 2 };
          if (box.top < 0 || box.bottom > height) continue;
          const [around, covered] = [grown(box, AROUND), grown(box, radius + (mayHide ? 0 : 2))];
          const [hidden, near] = [countIn(covered), ownIn(around)];
          const share = Math.min(1, near / Math.max(1, countIn(around)));
          const lost = mayHide ? 0.2 * hidden + 0.6 * foreignIn(covered) : (wanted.length === 1 ? 1.5 : 20) * hidden;
          places.push({ ...box, group, isShared, own, foreignIn, from: [atX, atY], words, middle, line, hidden, share, cost: (isWhole ? 4 : 8) * (1 - share) - (isWhole ? members.length / largest : 5 * near / members.length) + Math.min(lost, 40) + Math.hypot(middle - atX, down) / (isWhole ? 25 : 12) + (wanted.length === 1 && down > 0 ? 3 : 0) }); // the description of a point is below it
        }
      }
      return places.sort((one, two) => one.cost - two.cost);
    });
  };
  const all = wanted.map(candidates).filter((places) => places.length > 0 && places.every(([first]) => first !== undefined));
  if (mayHide) all.sort(([[one]], [[two]]) => one.cost - two.cost);
  const placed = [];
  const isFree = (place) => placed.every((other) => !overlaps(mayHide ? place : grown(place, APART), other) && !crosses(place.to, other) && !crosses(other.to, place));
  /** A place with its line, null if it needs none; undefined if it is not a good place. */
  const linked = (place) => {
    if (mayHide) return place.share >= OWN_SHARE ? { ...place, to: null } : undefined;
    if (place.hidden > 0) return wanted.length === 1 ? { ...place, to: null } : undefined;
    const line = lineFrom(place, isWhole ? place.own : [place.from]);
    const long = Math.hypot(line[1][0] - line[0][0], line[1][1] - line[0][1]);
    if (wanted.length === 1 || (long <= NEXT && place.foreignIn(grown(place, long + 3)) === 0)) return { ...place, to: null };
    const end = boxAround(line[1], (isWhole ? radius : 2 * radius) + CELL); // points there cover each other
    const reach = isWhole ? 1.5 * radius : radius;
    const isClear = (!isWhole || place.foreignIn(grown(place, radius + 2)) === 0) && stepsOf(line).every((position) => place.foreignIn(boxAround(position, reach)) <= (overlaps(boxAround(position, reach), end) ? place.foreignIn(end) : 0));
    const edge = radius / Math.max(long, 1); // the line ends at the edge of the point
    return isClear && long <= (isWhole ? Math.min(LONGEST, width / 14) : LONGEST) ? { ...place, to: [line[0], [0, 1].map((axis) => line[1][axis] + edge * (line[0][axis] - line[1][axis]))] } : undefined;
  };
  const put = (places, mayHaveLine) => {
    for (const place of places) {
      const label = linked(place);
      if (label !== undefined && (mayHaveLine || label.to === null) && isFree(label)) return placed.push(label);
    }
    return 0;
  };
  const left = all.filter((byName) => !byName.some((places) => put(places, !isWhole)));
  if (isWhole && !isClusters) for (const byName of left) put(byName.at(-1), true); // between others
  return placed;
}

/** Whether a line crosses a label. */
function crosses(line, { left, right, top, bottom }) {
  if (line === null) return false;
  return stepsOf(line).some(([across, down]) => across > left && across < right && down > top && down < bottom);
}

/** Positions on a line, from its first to its last. */
const stepsOf = ([from, to]) => Array.from({ length: 24 }, (_, step) => [0, 1].map((axis) => from[axis] + (to[axis] - from[axis]) * step / 23));

const boxAround = ([across, down], by) => ({ left: across - by, right: across + by, top: down - by, bottom: down + by });

/** The item with the largest value; the first of equal ones. */
function mostOf(items, valueOf) {
  const values = items.map(valueOf);
  return items[values.indexOf(Math.max(...values))];
}

const grown = ({ left, right, top, bottom }, by) => ({ left: left - by, right: right + by, top: top - by, bottom: bottom + by });

/** A line from the edge of a label to the nearest of some positions. */
function lineFrom({ left, right, top, bottom }, positions) {
  const from = ([across, down]) => [Math.max(left, Math.min(right, across)), Math.max(top + 3, Math.min(bottom - 3, down))];
  const gap = (point) => Math.hypot(point[0] - from(point)[0], point[1] - from(point)[1]);
  const nearest = mostOf(positions, (point) => -gap(point));
  return [from(nearest), nearest];
}

/** A function that gives the number of texts in a box of the map, from sums over cells. */
function countsOf(texts, at, width, height) {
  const [wide, high] = [Math.ceil(width / CELL) + 1, Math.ceil(height / CELL) + 1];
  const sums = new Int32Array(wide * high);
  for (const text of texts) {
    const [across, down] = at(text).map(cellOf);
    if (across >= 0 && across < wide - 1 && down >= 0 && down < high - 1) sums[(down + 1) * wide + across + 1] += 1;
  }
  for (let place = wide + 1; place < sums.length; place += 1) {
    if (place % wide !== 0) sums[place] += sums[place - 1] + sums[place - wide] - sums[place - wide - 1];
  }
  const within = (value, most) => Math.max(0, Math.min(most, cellOf(value)));
  return ({ left, right, top, bottom }) => {
    const [from, to, upper, lower] = [within(left, wide - 1), within(right, wide - 1), within(top, high - 1) * wide, within(bottom, high - 1) * wide];
    return sums[lower + to] - sums[lower + from] - sums[upper + to] + sums[upper + from];
  };
}

const cellOf = (value) => Math.floor(value / CELL);

/** The number of cells in a box, as `countsOf` reads it. */
function countOwn(cells, { left, right, top, bottom }) {
  const [from, to, upper, lower] = [left, right, top, bottom].map(cellOf);
  let count = 0;
  for (const [across, down] of cells) count += across >= from && across < to && down >= upper && down < lower ? 1 : 0;
  return count;
}

const overlaps = (one, two) => one.left < two.right && two.left < one.right && one.top < two.bottom && two.top < one.bottom;

/** The position in the middle of some positions: the median of each axis. */
const middleOf = (positions) => [0, 1].map((axis) => Float32Array.from(positions, (each) => each[axis]).sort()[positions.length >> 1]);
