// Draw discs into the pixels of an image, several times faster than with calls of the canvas.

const SAMPLES = 4; // samples of a pixel in each direction, for smooth edges

/** The coverage of pixels by a disc: columns, rows and parts of 256. */
function discMask(radius) {
  const reach = Math.ceil(radius);
  const mask = { columns: [], rows: [], covers: [] };
  for (let row = -reach; row <= reach; row += 1) {
    for (let column = -reach; column <= reach; column += 1) {
      let inside = 0;
      for (let sample = 0; sample < SAMPLES ** 2; sample += 1) {
        const across = column + ((sample % SAMPLES) + 0.5) / SAMPLES - 0.5;
        const down = row + (Math.floor(sample / SAMPLES) + 0.5) / SAMPLES - 0.5;
        if (across ** 2 + down ** 2 <= radius ** 2) inside += 1;
      }
      if (inside > 0) {
        mask.columns.push(column);
        mask.rows.push(row);
        mask.covers.push((256 * inside) / SAMPLES ** 2);
      }
    }
  }
  return mask;
}

/** An image of discs. Colors are `[red, green, blue]`. */
class Raster {
  // Discs at the edge reach beyond it, so the image is larger than its visible part.
  static MARGIN = 24;

  constructor(width, height) {
    this.width = width + 2 * Raster.MARGIN;
    this.height = height + 2 * Raster.MARGIN;
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.masks = new Map();
  }

  clear(color) {
    this.pixels.fill(packed(color));
  }

  /** The disc of a radius, as offsets of pixels and parts of 256. */
  #discOf(radius) {
    const key = Math.round(radius * 8);
    if (!this.masks.has(key)) {
      const { columns, rows, covers } = discMask(Math.min(key / 8, Raster.MARGIN - 1));
      this.masks.set(key, {
        offsets: Int32Array.from(columns, (column, place) => rows[place] * this.width + column),
        covers: Int32Array.from(covers),
      });
    }
    return this.masks.get(key);
  }

  /**
   * Draw a disc at each of some points.
   *
   * `place` is `{scale, left, top}`: a point lies at x · scale + left, y · scale + top, in pixels of the canvas.
   */
  discs(points, first, end, xs, ys, place, radius, color) {
    const { offsets, covers } = this.#discOf(radius);
    const { pixels, width, height } = this;
    const { scale } = place;
    const left = place.left + Raster.MARGIN + 0.5;
    const top = place.top + Raster.MARGIN + 0.5;
    const reach = Math.ceil(radius) + 1;
    const whole = packed(color);
    const [red, green, blue] = color;
    for (let at = first; at < end; at += 1) {
      const point = points[at];
      const column = Math.floor(xs[point] * scale + left);
      const row = Math.floor(ys[point] * scale + top);
      if (column < reach || row < reach || column >= width - reach || row >= height - reach) continue;
      const center = row * width + column;
      for (let part = 0; part < offsets.length; part += 1) {
        const pixel = center + offsets[part];
        const cover = covers[part];
        if (cover >= 256) {
          pixels[pixel] = whole;
          continue;
        }
        const under = pixels[pixel];
        const r = under & 255;
        const g = (under >> 8) & 255;
        const b = (under >> 16) & 255;
        pixels[pixel] = 0xff000000
          | ((b + (((blue - b) * cover) >> 8)) << 16)
          | ((g + (((green - g) * cover) >> 8)) << 8)
          | (r + (((red - r) * cover) >> 8));
      }
    }
  }

  put(context) {
    context.putImageData(this.image, -Raster.MARGIN, -Raster.MARGIN);
  }
}

// Red first in memory; all machines that browsers run on store the low byte first.
const packed = ([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
