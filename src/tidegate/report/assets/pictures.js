// Images of the messages, in the upper part of their lane, each at its event time.

const PICTURE = 110; // the most height of an image in pixels: several are worth more than a large one

class LanesWithPictures extends LanesWithValues {
  /** Does this lane have images, and the height to show them? */
  hasPictures(row) { return !row.strip && this.run.pictures.has(row.stream) && row.h >= PLOT + 42; }

  hasPlot(row) { return this.hasPictures(row) || super.hasPlot(row); }

  drawValues(g, row) {
    if (!this.hasPictures(row)) { super.drawValues(g, row); return; }
    const bottom = this.roof(row) - 10;
    const h = Math.min(bottom - (row.y - this.top + 4), PICTURE), top = bottom - h;
    let free = -Infinity; // where the last image ended: one that would cover it is left out
    for (const { message, image } of this.run.pictures.get(row.stream)) {
      const x = this.x(this.run.c.time[message]);
      const w = h * (image.naturalWidth / image.naturalHeight);
      if (x + w < this.gutter || x > this.w || x < free + 2) continue;
      g.drawImage(image, x, top, w, h);
      g.fillStyle = this.colour.soft;
      g.fillRect(x, top, 1, this.floor(row) - top); // down to the mark it belongs to
      free = x + w;
    }
  }
}

/** The images by stream, in order of time; those a browser cannot decode are left out. */
async function picturesByStream(run) {
  const found = await Promise.all((run.thumbnails || []).map(async ([message, mime, text]) => {
    const image = new Image();
    image.src = `data:${mime};base64,${text}`;
    try { await image.decode(); } catch { return null; }
    return { message, image };
  }));
  const out = new Map();
  for (const each of found) {
    if (!each || !each.image.naturalWidth) continue;
    const stream = run.c.stream[each.message];
    if (!out.has(stream)) out.set(stream, []);
    out.get(stream).push(each);
  }
  return out;
}
