// Texts in the form in which they are displayed, and phrases about them.

const numbers = new Intl.NumberFormat("en");

/** A number with its noun: `1 text`, `1,200 texts`. */
const counted = (number, one, many) => `${numbers.format(number)} ${number === 1 ? one : many}`;

// Control characters are invisible or disturb the text around them; tabs and line feeds may stay.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029]/g;
// Marks that change the direction of the text after them: an id that is shown backwards reads as another one.
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

/** A text with its control characters replaced. The number of characters does not change. */
const visible = (text) => text.replace(CONTROLS, "\ufffd");

/** A name or an id on one line. */
const label = (text) => visible(text).replace(TURNS, "\ufffd").replace(/\s+/g, " ").trim();

/** A text without the tags of formatted texts, for titles; `List<String>` has none. */
const untagged = (text) => text.replace(/<\/?(?:a|b|body|br|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|section|span|strong|table|t[dhr]|ul)(?:\s[^<>]*)?\/?>/gi, " ");

/** A text whose lines were wrapped at a width, as paragraphs. The number of characters does not change. */
const reflowed = (text) => text.replace(/^([^\n]*)\n(?=(\(?[\p{L}'’-]+)[,.;:]?(?:\s|$))/gmu, (own, line, word) => (line.length + word.length < 64 ? own : `${line} `));

/** A text as nodes that may break between the parts of a name such as `path.to_thing`. */
const breakable = (text) => visible(text).split(/(?<=\p{L}{2}[./]|\w{12}_)(?=\p{L})/u).flatMap((part, number) => (number === 0 ? [part] : [element("wbr"), part]));

/** The beginning of a text, on one line; a long one ends after a word. */
function beginning(text, longest) {
  const characters = Array.from(text.slice(0, 4 * longest));
  if (characters.length <= longest) return label(text);
  const line = label(characters.slice(0, longest).join(""));
  const space = line.lastIndexOf(" ");
  return `${space > 0.6 * line.length ? line.slice(0, space) : line}…`;
}

/** A text for comparison: without case and accents. */
const folded = (text) => text.toLowerCase().normalize("NFD").replace(/\p{M}+/gu, "").replaceAll("ς", "σ");

/** The occurrences of a folded needle in a text, as pairs of offsets. */
function occurrences(text, needle) {
  let plain = "";
  const from = []; // offset in the text of each unit of `plain`
  let offset = 0;
  for (const character of text) {
    const part = folded(character);
    for (let unit = 0; unit < part.length; unit += 1) from.push(offset);
    plain += part;
    offset += character.length;
  }
  from.push(offset);
  const found = [];
  for (let at = plain.indexOf(needle); at !== -1; at = plain.indexOf(needle, at + needle.length)) {
    const last = from[at + needle.length - 1];
    // Extend to the end of the character, with its combining marks.
    const end = from.slice(at + needle.length).find((next) => next > last) ?? offset;
    found.push([from[at], end]);
  }
  return found;
}

/** A text as nodes, with parts of it in elements. `parts` are pairs of offsets. */
function marked(text, parts, name) {
  const nodes = [];
  let last = 0;
  for (const [start, end] of parts) {
    nodes.push(...breakable(text.slice(last, start)), element(name, {}, breakable(text.slice(start, end))));
    last = end;
  }
  nodes.push(...breakable(text.slice(last)));
  return nodes;
}

const [FOLDED, ENDS] = [400, 80]; // characters: equal stretches that are longer are folded, but for their ends

/** Text that two texts share, as nodes. The middle of a long one is folded, or what follows the last difference; a button shows it. */
function folding(text, isLast = false) {
  if (text.length <= (isLast ? FOLDED - ENDS : FOLDED)) return breakable(text);
  const before = text.slice(0, ENDS).replace(/\S*$/u, "").trimEnd();
  const after = isLast ? "" : text.slice(-ENDS).replace(/^\S*/u, "").trimStart();
  const middle = text.slice(before.length, text.length - after.length);
  const words = counted(middle.length, "equal character", "equal characters");
  const whole = element("span", { tabindex: "-1" });
  const show = () => { whole.replaceChildren(...breakable(middle)); whole.focus({ preventScroll: true }); };
  whole.append(element("button", { type: "button", class: "link", click: show }, `… ${words}${isLast ? "" : " …"}`));
  return [...breakable(before), whole, ...breakable(after)];
}

const SPACE = /[\s\x1c-\x1f\x85]/; // what JavaScript or Python takes for white space
const solid = (text) => Array.from(text).filter((character) => !SPACE.test(character)).length;

/** The offset after a number of characters that are not white space. */
function afterSolid(text, from, count) {
  let offset = from;
  for (let left = count; left > 0 && offset < text.length; ) {
    const character = String.fromCodePoint(text.codePointAt(offset));
    left -= SPACE.test(character) ? 0 : 1;
    offset += character.length;
  }
  return offset;
}

/** Two texts as one, in pieces `[name, text]`: "del" is only in the first, "ins" only in the second, "" in both. */
function merged(one, two, removed, added) {
  const pieces = [];
  const [dels, inss] = [[...removed], [...added]];
  let [at, from] = [0, 0]; // in the first text, in the second
  while (dels.length + inss.length > 0) {
    const [del, ins] = [dels[0], inss[0]];
    const [toDel, toIns] = [del ? solid(one.slice(at, del[0])) : Infinity, ins ? solid(two.slice(from, ins[0])) : Infinity];
    const shared = Math.min(toDel, toIns);
    at = afterSolid(one, at, shared);
    const to = afterSolid(two, from, shared);
    pieces.push(["", toDel === shared ? two.slice(from, to) + one.slice(at, del[0]) : two.slice(from, ins[0])]);
    from = toIns === shared ? ins[0] : to;
    if (toDel === shared) {
      pieces.push(["del", one.slice(...dels.shift())]);
      at = del[1];
      const isApart = toIns === shared || (SPACE.test(one[at]) && !SPACE.test(two[from]));
      if (isApart) pieces.push(["", " "]);
    }
    if (toIns === shared) {
      pieces.push(["ins", two.slice(...inss.shift())]);
      from = ins[1];
    }
  }
  return [...pieces, ["", two.slice(from)]].filter(([, text]) => text !== "");
}

/** Pairs of offsets of a text in UTF-16 units, from a flat list that counts characters as Python does. */
function unitOffsets(text, flat) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  const pairs = [];
  for (let at = 0; at < flat.length; at += 2) pairs.push([units[flat[at]], units[flat[at + 1]]]);
  return pairs;
}
