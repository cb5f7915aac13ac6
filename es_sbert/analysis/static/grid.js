// Find the point nearest to a position without comparing all of them.

/** Points of the unit square, sorted into cells. */
class PointGrid {
  constructor(xs, ys) {
    this.xs = xs;
    this.ys = ys;
    this.side = Math.max(1, Math.min(256, Math.ceil(Math.sqrt(xs.length / 4))));
    const cells = Int32Array.from(xs, (value, point) => this.#cell(value) + this.side * this.#cell(ys[point]));
    // The points of cell c are points[starts[c]] to points[starts[c + 1] - 1].
    this.starts = new Int32Array(this.side ** 2 + 1);
    for (const cell of cells) this.starts[cell + 1] += 1;
    for (let cell = 0; cell < this.side ** 2; cell += 1) this.starts[cell + 1] += this.starts[cell];
    this.points = new Int32Array(xs.length);
    const next = this.starts.slice();
    cells.forEach((cell, point) => { this.points[next[cell]++] = point; });
  }

  #cell(value) {
    return Math.max(0, Math.min(this.side - 1, Math.floor(value * this.side)));
  }

  /** The nearest point within a radius, -1 for none. */
  nearest(atX, atY, radius) {
    let best = -1;
    let least = radius * radius;
    const [left, right] = [this.#cell(atX - radius), this.#cell(atX + radius)];
    for (let row = this.#cell(atY - radius); row <= this.#cell(atY + radius); row += 1) {
      const end = this.starts[row * this.side + right + 1];
      for (let place = this.starts[row * this.side + left]; place < end; place += 1) {
        const point = this.points[place];
        const distance = (this.xs[point] - atX) ** 2 + (this.ys[point] - atY) ** 2;
        if (distance <= least) [best, least] = [point, distance];
      }
    }
    return best;
  }

  /** The nearest point of all. */
  nearestOfAll(atX, atY) {
    for (let radius = 1 / this.side; radius < 4; radius *= 2) {
      const found = this.nearest(atX, atY, radius);
      if (found !== -1) return found;
    }
    return this.points.length > 0 ? this.nearest(atX, atY, Infinity) : -1;
  }
}
