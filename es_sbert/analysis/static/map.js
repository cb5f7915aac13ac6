// The map: one canvas, drawn at most once a frame.

const MOST_ZOOM = 64;
const LEAST_ZOOM = 0.5;
const STEP = 48; // pixels that an arrow key moves the map by
const NEAR = 12; // distance in pixels at which the pointer selects a point
const NEXT_TO = 60; // maximum number of pixels between a point and its description
const MOVED = 4; // pixels of movement that turn a click into a drag
const OUTLINED = 1500; // maximum number of outlined points; more would hide the map
const NAME_SHOWN = 36; // characters of a cluster's name under the pointer
const FEW_POINTS = 200; // highlighted points that are drawn larger
const LARGE = 8; // radius of a point in pixels
const LABELED = 60; // maximum number of groups with a label
const NARROW = 420; // pixels
const FRAMED = 24; // pixels around all points, for labels

class TextMap {
  #canvas = byId("map-canvas");
  #hoverBox = byId("map-hover");
  #context = this.#canvas.getContext("2d");
  #all = byClass(Array.from({ length: textCount }, (_, text) => text));
  #bounds = boundsOf(this.#all.order);
  #highlighted = null;
  #sized = bySize.map((group) => ({ group, members: groups[group].members })); // groups, the largest first
  #found = []; // groups with their highlighted texts, those with the most first
  #selected = -1;
  #hovered = -1;
  #passing = null; // {group, texts} of the point under the pointer
  #view = null; // {scale, left, top}, in CSS pixels
  #ratio = 1; // pixels of the screen in a CSS pixel
  #whole = 1; // the scale at which all points are shown
  #pointer = null; // {id, at} of the pointer that is held down
  #dragged = false;
  #frame = 0;

  /** `choose` is called with a text that is selected, `tell` with a description of the text in the middle. */
  constructor(choose, tell) {
    this.choose = choose;
    this.tell = tell;
    this.readColors();
    new ResizeObserver(() => this.#resize()).observe(byId("map-frame"));
    this.#listen();
  }

  /** Read the colors of the theme from elements that have them. */
  readColors() {
    const colorIn = (node, property) => {
      const words = getComputedStyle(node)[property];
      return words.match(/[\d.]+/g).slice(0, 3).map((value) => value * (words.startsWith("color(") ? 255 : 1)); // of mixed colors
    };
    const probe = element("span", { class: "swatch", hidden: true });
    byId("map-frame").append(probe);
    this.colors = Array.from({ length: CLASS_COUNT }, (_, number) => {
      probe.className = swatchOf(number).className;
      return colorIn(probe, "backgroundColor");
    });
    probe.remove();
    const style = getComputedStyle(this.#canvas);
    this.ground = colorIn(this.#canvas, "backgroundColor");
    this.ink = colorIn(this.#canvas, "color");
    this.font = `600 13px ${style.fontFamily}`;
    this.#redraw();
  }

  /** Highlight some texts and draw the others fainter; null highlights none. `isPassing` is for a group under the pointer. */
  highlight(chosen, group = -1, isPassing = false) {
    this.#highlighted = chosen === null ? null : byClass(chosen);
    const found = new Map(bySize.map((number) => [number, []]));
    for (const text of chosen ?? []) found.get(groupOf[text])?.push(text);
    this.#found = [...found].filter(([, own]) => own.length > 0).map(([number, members]) => ({ group: number, members })).sort((one, two) => two.members.length - one.members.length);
    this.#selected = group;
    this.#passing = null;
    if (!isPassing) {
      byId("zoom-selection").hidden = chosen === null || chosen.length === 0;
      byId("zoom-selection").textContent = group === -1 ? "Fit found" : "Fit selection";
    }
    this.#redraw();
  }

  showAll() {
    this.#fit(this.#bounds);
  }

  showHighlighted() {
    if (this.#highlighted?.order.length) this.#fit(boundsOf(this.#highlighted.order), 2 * FRAMED);
  }

  zoom(factor, atX = this.#canvas.clientWidth / 2, atY = this.#canvas.clientHeight / 2) {
    if (this.#view === null) return;
    const { scale, left, top } = this.#view;
    const next = Math.max(LEAST_ZOOM * this.#whole, Math.min(MOST_ZOOM * this.#whole, scale * factor));
    const by = next / scale;
    this.#view = { scale: next, left: atX - (atX - left) * by, top: atY - (atY - top) * by };
    this.#redraw();
  }

  #pan(right, down) {
    if (this.#view === null) return;
    this.#view.left += right;
    this.#view.top += down;
    this.#redraw();
  }

  #fit({ left, right, top, bottom }, framed = FRAMED) {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const fitting = ([wide, high], around) => Math.min(
      (width - 2 * around) / Math.max(wide, 1e-9), (height - 2 * around) / Math.max(high, 1e-9),
    );
    const { left: l, right: r, top: t, bottom: b } = this.#bounds;
    this.#whole = Math.min(fitting([r - l, b - t], FRAMED), 1e5);
    const scale = Math.min(fitting([right - left, bottom - top], framed), MOST_ZOOM * this.#whole / 10);
    this.#view = {
      scale: Math.max(scale, this.#whole), left: 0, top: 0,
    };
    this.#view.left = width / 2 - (left + right) / 2 * this.#view.scale;
    this.#view.top = height / 2 - (top + bottom) / 2 * this.#view.scale;
    this.#redraw();
  }

  /** Give the canvas a whole number of pixels of the screen: a scaled canvas is blurred. */
  #resize() {
    const ratio = this.#ratio = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = byId("map-frame");
    if (clientWidth === 0 || clientHeight === 0) return;
    const before = { width: this.#canvas.width, height: this.#canvas.height };
    this.#canvas.width = Math.floor(clientWidth * ratio);
    this.#canvas.height = Math.floor(clientHeight * ratio);
    for (const side of ["width", "height"]) this.#canvas.style[side] = `${this.#canvas[side] / ratio}px`;
    const untouched = this.#view === null || this.#view.scale === this.#whole;
    if (untouched) this.#fit(this.#bounds);
    else this.#pan((this.#canvas.width - before.width) / ratio / 2, (this.#canvas.height - before.height) / ratio / 2);
  }

  #redraw() {
    if (this.#frame === 0) {
      this.#frame = requestAnimationFrame(() => {
        this.#frame = 0;
        this.#draw();
      });
    }
  }

  #draw() {
    if (this.#view === null) return;
    if (this.#canvas.matches(":focus-visible")) this.#lookAtMiddle();
    const ratio = this.#ratio;
    const { scale, left, top } = this.#view;
    const place = { scale: scale * ratio, left: left * ratio, top: top * ratio };
    const radius = this.#radius();
    this.#context.setTransform(1, 0, 0, 1, 0, 0);
    this.#context.fillStyle = `rgb(${this.ground})`;
    this.#context.fillRect(0, 0, this.#canvas.width, this.#canvas.height);
    const shown = this.#passing?.texts ?? this.#highlighted;
    const faint = shown !== null;
    const larger = faint ? Math.max(radius, Math.min(LARGE, this.#enlarged(shown.order.length) * radius)) : radius;
    this.#drawPoints(this.#all, place, radius * ratio, (number) => (faint ? mixed(this.colors[number], this.ground, 0.3) : this.colors[number]));
    if (faint) {
      const outline = shown.order.length <= OUTLINED ? this.ground : null; // which parts points that overlap
      this.#drawPoints(shown, place, larger * ratio, (number) => this.colors[number], outline);
    }
    this.#context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#drawLabels(faint ? shown.order : this.#all.order, larger, this.#placeHoverBox());
    this.#drawHovered();
  }

  #drawPoints({ order, starts }, { scale, left, top }, radius, colorIn, outline = null) {
    const { width, height } = this.#canvas;
    // The largest points first, which would cover others.
    for (const stack of sizes) for (let number = 0; number < CLASS_COUNT; number += 1) {
      const point = pointOf((number === NO_GROUP ? 0.85 : 1 + 0.15 * stack) * radius, shapeOf(number), colorIn(number), outline);
      const half = point.width / 2;
      for (let at = starts[number]; at < starts[number + 1]; at += 1) {
        if (stacks[order[at]] !== stack) continue;
        const across = Math.round(x[order[at]] * scale + left - half);
        const down = Math.round(y[order[at]] * scale + top - half);
        if (across > -point.width && across < width && down > -point.width && down < height) {
          this.#context.drawImage(point, across, down);
        }
      }
    }
  }

  #radius() {
    const few = Math.max(1.3, Math.min(5, (this.#canvas.clientWidth < NARROW ? 8 : 10) * textCount ** -0.17));
    return few * Math.max(0.8, Math.min(2, (this.#view.scale / this.#whole) ** 0.35));
  }

  /** How much larger highlighted points are: those that were found most, and those of a group little, which are close to each other. */
  #enlarged(count) {
    if (this.#passing !== null) return 1.2;
    return this.#selected === -1 && count <= FEW_POINTS ? 2.2 : 1.6;
  }

  #at(text) {
    const { scale, left, top } = this.#view;
    return [x[text] * scale + left, y[text] * scale + top];
  }

  /** Names of the groups, or of the selected one; with texts that were found, how many of them a group has. `box` hides some. */
  #drawLabels(texts, radius, box) {
    const context = this.#context;
    const selected = this.#passing?.group ?? this.#selected;
    const isFound = this.#highlighted !== null && selected === -1;
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    context.font = this.font;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    const labelOf = ({ together, members }, isWhole) => ({
      group: together[0],
      isShared: together.length > 1,
      members,
      names: labelsOf(together, isWhole || isFound ? width : Infinity, isWhole).map((name) => (isFound ? `${name}: ${numbers.format(members.length)}` : name)).map((words) => ({ words, wide: context.measureText(words).width + 6 })),
    });
    const at = (text) => this.#at(text);
    const place = (named, among, isWhole) => {
      const [shown, size] = [named.slice(0, LABELED), isWhole ? this.#radius() : radius];
      const places = isWhole ? togetherOf(shown, at, size) : shown.map(({ group, members }) => ({ together: [group], members }));
      return placeLabels(places.map((each) => labelOf(each, isWhole)), among, at, { width, height, radius: size, isWhole });
    };
    let labels = place(isFound ? this.#found : this.#sized, isFound ? texts : this.#all.order, !isFound);
    if (selected !== -1) {
      const isZoomed = this.#passing === null && this.#view.scale > 1.2 * this.#whole;
      const neighbors = labels.filter(({ group }) => group !== selected);
      labels = isZoomed ? [] : labels.filter(({ group }) => group === selected && isClusters); // where it was before
      if (labels.length === 0) labels = place([{ group: selected, members: groups[selected].members }], this.#all.order, false);
      const isOnSelected = (box) => texts.some((text) => overlaps(box, boxAround(this.#at(text), radius)));
      labels.push(...neighbors.filter((other) => !labels.some((label) => overlaps(label, other) || crosses(other.to, label)) && !isOnSelected(other)));
    }
    for (const { group, isShared, words, middle, line, to } of labels.filter((label) => box === null || !overlaps(label, box))) {
      const strong = isShared ? this.ink : mixed(this.colors[classOfGroup[group]], this.ink, 0.65);
      const color = `rgb(${selected === -1 || group === selected ? strong : mixed(strong, this.ground, 0.5)})`;
      if (to !== null) {
        context.strokeStyle = color;
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(...to[0]);
        context.lineTo(...to[1]);
        context.stroke();
      }
      context.lineWidth = 4;
      context.strokeStyle = `rgb(${this.ground})`;
      context.strokeText(words, middle, line);
      context.fillStyle = color;
      context.fillText(words, middle, line);
    }
  }

  #drawHovered() {
    const context = this.#context;
    if (this.#canvas.matches(":focus-visible")) {
      const [middle, line] = [this.#canvas.clientWidth / 2, this.#canvas.clientHeight / 2];
      context.strokeStyle = `rgb(${this.ink})`;
      context.lineWidth = 1.5;
      context.beginPath();
      for (const [right, down] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        context.moveTo(middle + 5 * right, line + 5 * down);
        context.lineTo(middle + 14 * right, line + 14 * down);
      }
      context.stroke();
    }
    if (this.#hovered === -1) return;
    const [atX, atY] = this.#at(this.#hovered);
    context.strokeStyle = `rgb(${this.ink})`;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(atX, atY, this.#radius() + 4, 0, 2 * Math.PI);
    context.stroke();
  }

  #hover(text) {
    if (text === this.#hovered) return;
    this.#hovered = text;
    const group = text === -1 ? -1 : groupOf[text];
    this.#passing = group === -1 || this.#highlighted !== null ? null : { group, texts: byClass(groups[group].members) };
    if (text !== -1) {
      this.#hoverBox.replaceChildren(
        element("p", { dir: "auto" }, beginning(texts[text], 160) || "(text not known)"),
        element("p", { class: "note facts" }, fateOf(text), idOf(text), this.#copiesAt(text), this.#groupAt(text, group)),
      );
    }
    this.#redraw();
  }

  /** The group of a text, and of near-duplicates its cosine with the kept text. */
  #groupAt(text, group) {
    if (group === -1) return kind.none;
    const cosine = cosineWithKept(text);
    return element("span", {}, swatchOf(classOfGroup[group]), `${beginning(headingOf(group), NAME_SHOWN)}${cosine === null ? "" : `, cosine ${cosine.toFixed(DECIMALS)}`}`);
  }

  /** How many texts of a group are identical with one of it, and so at the same place. */
  #copiesAt(text) {
    const rows = groupOf[text] === -1 ? [] : byText(groups[groupOf[text]].members);
    const count = rows.find((own) => own.includes(text))?.length ?? 1;
    return count === 1 ? "" : element("span", {}, counted(count, "identical text", "identical texts"));
  }

  /** Show the description of the text under the pointer; where it is, null if there is none. */
  #placeHoverBox() {
    const box = this.#hoverBox;
    box.hidden = this.#hovered === -1;
    if (box.hidden) return null;
    const [atX, atY] = this.#at(this.#hovered);
    const { clientWidth, clientHeight } = this.#canvas;
    const [wide, high] = [box.offsetWidth, box.offsetHeight];
    const boxLeft = atX + 14 + wide <= clientWidth ? atX + 14 : atX - 14 - wide;
    // Below the group or above it, if that leaves room; else below or above the point.
    const own = [...(this.#passing?.texts.order ?? [])].map((text) => this.#at(text)[1]);
    const sides = [[Math.min(atY + NEXT_TO, Math.max(atY, ...own)), Math.max(atY - NEXT_TO, Math.min(atY, ...own))], [atY, atY]].flatMap(([low, top]) => [low + 14, top - 14 - high]);
    const [left, top] = [Math.max(4, Math.min(clientWidth - wide - 4, boxLeft)), sides.find((each) => each >= 4 && each + high <= clientHeight) ?? 4];
    box.style.left = `${left}px`;
    box.style.top = `${top}px`;
    return { left, right: left + wide, top, bottom: top + high };
  }

  /** The text nearest to a position of the canvas within a distance, -1 for none. */
  #textAt(atX, atY, near = NEAR) {
    const { scale, left, top } = this.#view;
    const [right, down] = [(atX - left) / scale, (atY - top) / scale];
    let [best, least] = [-1, (near / scale) ** 2];
    for (let text = 0; text < textCount; text += 1) {
      const distance = (x[text] - right) ** 2 + (y[text] - down) ** 2;
      if (distance <= least) [best, least] = [text, distance];
    }
    return best;
  }

  /** With the keyboard, which has no pointer, the current text is the one nearest to the middle of the map. */
  #lookAtMiddle() {
    const text = this.#textAt(this.#canvas.clientWidth / 2, this.#canvas.clientHeight / 2, Infinity);
    if (text === this.#hovered || text === -1) return;
    this.#hover(text);
    this.tell(`${titleOf(text, 160)}. ${groupNote(groupOf[text])}.`);
  }

  #listen() {
    const canvas = this.#canvas;
    const at = ({ offsetX, offsetY }) => [offsetX, offsetY];
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.#pointer = { id: event.pointerId, at: at(event) };
      this.#dragged = false;
    });
    canvas.addEventListener("pointermove", (event) => this.#move(event, at(event)));
    canvas.addEventListener("pointerup", (event) => {
      const held = this.#release(event);
      if (!held || this.#dragged || event.button !== 0) return;
      const text = this.#textAt(...at(event), event.pointerType === "mouse" ? NEAR : 2 * NEAR);
      this.#hover(text); // touch has no pointer that hovers
      if (text !== -1) this.choose(text);
    });
    for (const name of ["pointercancel", "lostpointercapture"]) {
      canvas.addEventListener(name, (event) => this.#release(event));
    }
    canvas.addEventListener("pointerleave", () => { if (this.#pointer === null) this.#hover(-1); });
    canvas.addEventListener("wheel", (event) => {
      // If the map cannot zoom out further, the page scrolls.
      if (this.#view === null || (event.deltaY > 0 && this.#view.scale <= LEAST_ZOOM * this.#whole)) return;
      event.preventDefault();
      const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
      this.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0016)), ...at(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#press(event));
    canvas.addEventListener("focus", () => this.#redraw());
    canvas.addEventListener("blur", () => { this.#hover(-1); this.#redraw(); });
  }

  #move(event, [atX, atY]) {
    if (this.#pointer === null) {
      if (this.#view !== null) this.#hover(this.#textAt(atX, atY));
      this.#canvas.classList.toggle("pointing", this.#hovered !== -1);
      return;
    }
    if (this.#pointer.id !== event.pointerId) return;
    const [right, down] = [atX - this.#pointer.at[0], atY - this.#pointer.at[1]];
    if (!this.#dragged && Math.hypot(right, down) < MOVED) return;
    this.#dragged = true;
    this.#hover(-1);
    this.#pointer.at = [atX, atY];
    this.#pan(right, down);
  }

  /** Whether this pointer was held down. */
  #release({ pointerId }) {
    if (this.#pointer?.id !== pointerId) return false;
    this.#pointer = null;
    return true;
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key in DIRECTIONS) this.#pan(...DIRECTIONS[key].map((way) => -STEP * way));
    else if (key === "+" || key === "=") this.zoom(1.4);
    else if (key === "-") this.zoom(1 / 1.4);
    else if (key === "0") this.showAll();
    else if (key === "Enter" || key === " ") {
      if (this.#hovered !== -1) this.choose(this.#hovered);
    } else if (key === "Escape" && !this.#hoverBox.hidden && !this.#canvas.matches(":focus-visible")) {
      this.#hover(-1);
      event.stopPropagation();
    } else return;
    event.preventDefault();
  }
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const groupNote = (group) => (group === -1 ? kind.none : `${headingOf(group)}, ${figuresOf(group)}`);

const CORNERS = [[], [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]], [[0, -1.5], [1.4, 1], [-1.4, 1]], [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]]];

/** A point of a shape and a color, with an outline if that has a color, which is drawn once and copied to each place. */
function pointOf(radius, shape, color, outline) {
  const side = 2 * Math.ceil(1.5 * radius) + 2;
  const canvas = element("canvas", { width: side, height: side });
  const context = canvas.getContext("2d");
  context.fillStyle = `rgb(${color})`;
  context.beginPath();
  if (shape === 0) context.arc(side / 2, side / 2, radius, 0, 2 * Math.PI);
  for (const [right, down] of CORNERS[shape]) context.lineTo(side / 2 + radius * right, side / 2 + radius * down);
  context.closePath();
  context.fill();
  context.strokeStyle = outline === null ? "transparent" : `rgb(${outline})`;
  context.stroke();
  return canvas;
}

const mixed = (color, ground, part) => color.map((value, place) => Math.round(value * part + ground[place] * (1 - part)));

/** Texts in the order of their classes: those of class c are order[starts[c]] to order[starts[c + 1] - 1]. */
function byClass(chosen) {
  const starts = new Int32Array(CLASS_COUNT + 1);
  for (const text of chosen) starts[classOf[text] + 1] += 1;
  for (let number = 0; number < CLASS_COUNT; number += 1) starts[number + 1] += starts[number];
  const order = new Int32Array(chosen.length);
  const next = starts.slice();
  for (const text of chosen) order[next[classOf[text]]++] = text;
  return { order, starts };
}

function boundsOf(chosen) {
  const bounds = { left: 1, right: 0, top: 1, bottom: 0 };
  for (const text of chosen) {
    bounds.left = Math.min(bounds.left, x[text]);
    bounds.right = Math.max(bounds.right, x[text]);
    bounds.top = Math.min(bounds.top, y[text]);
    bounds.bottom = Math.max(bounds.bottom, y[text]);
  }
  return chosen.length > 0 ? bounds : { left: 0, right: 1, top: 0, bottom: 1 };
}
