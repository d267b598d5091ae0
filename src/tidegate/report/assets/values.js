// Numbers of the messages, as a small plot in the upper part of their lane.

const PLOT = 54; // the least height in pixels of a plot, with the line that names its column

class LanesWithValues extends Lanes {
  /** Is there something above the marks of this lane? */
  hasPlot(row) { return this.hasValues(row); }

  /** Does this lane have numbers, and the height to show them? */
  hasValues(row) {
    const { values } = this.run;
    return Boolean(values) && values[row.topic] !== null && row.h >= PLOT + 42;
  }

  drawValues(g, row) {
    if (!this.hasValues(row)) return;
    const { time, value } = this.run.c;
    const [from, to] = this.run.range(row.stream, 0);
    // one message beyond each edge, so that the line reaches it
    let low = Math.max(bisect(time, this.a, from, to) - 1, from);
    let high = Math.min(bisect(time, this.b, low, to) + 1, to);
    const pause = 20 * this.run.usualStep(row.stream);
    if (pause > 0 && time[low + 1] - time[low] > pause && time[low] < this.a) low++;
    if (pause > 0 && time[high - 1] - time[high - 2] > pause && time[high - 1] > this.b) high--;
    let least = Infinity, most = -Infinity;
    for (let i = low; i < high; i++) if (value[i] === value[i]) { least = Math.min(least, value[i]); most = Math.max(most, value[i]); }
    if (least > most) return;
    const top = row.y - this.top + 15, bottom = this.roof(row) - 12;
    const y = (v) => (most > least ? bottom - ((v - least) / (most - least)) * (bottom - top) : (top + bottom) / 2);
    g.strokeStyle = this.colour.set;
    g.lineWidth = 1.2;
    g.beginPath();
    if (high - low <= 2 * this.w) this.plotEach(g, low, high, y); else this.plotRange(g, low, high, y);
    g.stroke();
    g.fillStyle = this.colour.soft;
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    g.fillText(`${this.run.values[row.topic]}: ${+least.toPrecision(4)} … ${+most.toPrecision(4)}`, this.gutter + 6, row.y - this.top + 8);
  }

  plotEach(g, low, high, y) {
    const { time, value, stream } = this.run.c;
    const pause = 20 * this.run.usualStep(stream[low]);
    let pen = false;
    for (let i = low; i < high; i++) {
      if (value[i] !== value[i]) { pen = false; continue; } // not a number: a gap in the line
      if (pen && pause > 0 && time[i] - time[i - 1] > pause) pen = false; // nothing was measured there
      if (pen) g.lineTo(this.x(time[i]), y(value[i])); else g.moveTo(this.x(time[i]), y(value[i]));
      pen = true;
    }
  }

  /** The least and greatest value under each pixel. */
  plotRange(g, low, high, y) {
    const { time, value } = this.run.c;
    let i = low;
    for (let p = 0; p < this.w - this.gutter && i < high; p++) {
      const end = this.t(this.gutter + p + 1);
      let least = Infinity, most = -Infinity;
      for (; i < high && time[i] < end; i++) { if (value[i] < least) least = value[i]; if (value[i] > most) most = value[i]; }
      if (least > most) continue;
      g.moveTo(this.gutter + p, y(least) + 0.5);
      g.lineTo(this.gutter + p, y(most) - 0.5);
    }
  }
}
