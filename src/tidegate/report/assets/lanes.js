// Lanes: one per stream. The lower row is event time, the upper one arrival, and a line joins the two.
// Where a stream has numbers or images, they are shown above (values.js, pictures.js). Zoomed out, a lane shows how many
// messages are under each pixel, found by bisection.

const AXIS = 26, LANE = 56, STRIP = 30; // heights in pixels: the axis, the lowest lane, a strip of groups
const PICTURED = 170; // the least height of a lane with images: they are 60 high then
const FOOT = 20; // below the lanes: the labels of watermarks
const MARKS_HEIGHT = 84; // the most that event time and arrival are apart; the rest of a lane is for values
const MANY = 40; // with more lanes, those with most messages come first: the others need scrolling
const SINGLE = 260; // messages of a lane that can still be told apart
const MARKS = 3600; // exceptions drawn per lane before they are thinned

class Lanes {
  layOut() {
    const { run } = this;
    const rows = [];
    const keys = this.key < 0 ? run.keys.map((_, k) => k) : [this.key];
    for (const key of keys) {
      if (run.groups && run.groupsOf[key] && run.groupsOf[key].list.length) {
        rows.push({ strip: true, key, h: this.stripHeight() });
      }
      const own = [];
      for (let t = 0; t < run.topics.length; t++) {
        const stream = key * run.topics.length + t;
        if (this.count(stream)) own.push({ key, topic: t, stream, h: LANE });
      }
      if (own.length > MANY) own.sort((p, q) => this.count(q.stream) - this.count(p.stream) || p.topic - q.topic);
      rows.push(...own);
    }
    // few lanes share the height there is; many keep the lowest height and scroll
    const lanes = rows.filter((row) => !row.strip);
    const strips = rows.reduce((sum, row) => sum + (row.strip ? row.h : 0), 0);
    this.laidOutFor = this.scroller.clientHeight;
    const rest = this.laidOutFor - AXIS - FOOT - strips;
    const each = Math.floor(rest / Math.max(lanes.length, 1));
    // images need some height to be seen: where lanes are many, theirs take it from the others
    const pictured = each < PICTURED ? lanes.filter((row) => run.pictures.has(row.stream)) : [];
    const others = Math.floor((rest - pictured.length * PICTURED) / Math.max(lanes.length - pictured.length, 1));
    for (const row of lanes) row.h = Math.max(LANE, others);
    for (const row of pictured) row.h = PICTURED;
    let y = AXIS;
    for (const row of rows) { row.y = y; y += row.h; }
    this.rows = rows;
    this.height = y + FOOT;
  }

  /** The pixel of event time in a lane. */
  floor(row) { return row.y - this.top + row.h - 12; }

  /** The pixel of arrival in a lane. */
  roof(row) { return this.hasPlot(row) ? this.floor(row) - Math.min(MARKS_HEIGHT, row.h - 12 - PLOT) : row.y - this.top + 11; }

  /** The pixel of event time by stream. */
  floors(rows) { return new Map(rows.filter((row) => !row.strip).map((row) => [row.stream, this.floor(row)])); }

  stripHeight() { return this.run.groups.what === "window" ? STRIP + 30 : STRIP; }

  x(t) { return this.gutter + ((t - this.a) / (this.b - this.a)) * (this.w - this.gutter); }

  t(x) { return this.a + ((x - this.gutter) / (this.w - this.gutter)) * (this.b - this.a); }

  clip(g, paint) {
    g.save();
    g.beginPath();
    g.rect(this.gutter, AXIS, this.w - this.gutter, this.h - AXIS);
    g.clip();
    paint();
    g.restore();
  }

  drawBand(g, row) {
    const y = row.y - this.top;
    g.fillStyle = this.colour.row;
    if (row.strip) g.fillRect(0, y, this.w, row.h);
    g.fillStyle = this.colour.line;
    g.fillRect(0, y + row.h - 1, this.w, 1);
  }

  drawLabel(g, row) {
    const y = row.y - this.top;
    g.save();
    g.beginPath();
    g.rect(0, AXIS, this.gutter - 6, this.h - AXIS);
    g.clip();
    g.fillStyle = row.strip ? this.colour.row : this.colour.panel;
    g.fillRect(0, y, this.gutter, row.h - 1);
    const name = row.strip ? { set: "sets", batch: "batches", window: "windows" }[this.run.groups.what] : this.run.topics[row.topic] || "messages";
    g.fillStyle = this.colour.ink;
    const small = this.key < 0 ? this.run.keys[row.key] : row.strip ? "" : counted(this.count(row.stream), "row");
    g.fillText(row.strip ? name : this.label(g, name), 10, y + (small ? row.h / 2 - 8 : row.h / 2));
    if (small) {
      g.fillStyle = this.colour.soft;
      g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
      g.fillText(fitted(g, small, this.gutter - 20), 10, y + row.h / 2 + 9);
    }
    g.restore();
  }

  /** The name of a topic as it fits beside its lane, no two alike. */
  label(g, name) {
    const room = this.gutter - 20;
    if (!this.labels || this.labels.room !== room || this.labels.run !== this.run) {
      this.labels = { room, run: this.run, cut: fittedApart(g, this.run.topics, room) };
    }
    return this.labels.cut.get(name) || fitted(g, name, room);
  }

  count(stream) {
    const kinds = this.run.kinds.length;
    return this.run.starts[(stream + 1) * kinds] - this.run.starts[stream * kinds];
  }

  ticks() {
    const rough = (this.b - this.a) / Math.max((this.w - this.gutter) / 110, 1);
    if (rough > 7 * DAY && Math.abs(Number(this.run.origin_ns)) >= 3e16) return this.monthTicks(tickMonths(rough));
    const step = tickStep(this.b - this.a, (this.w - this.gutter) / 110);
    const shift = Number(BigInt(this.run.origin_ns) % BigInt(Math.round(step)));
    const out = [];
    for (let t = Math.ceil((this.a + shift) / step) * step - shift; t <= this.b; t += step) out.push(t);
    return [out, step];
  }

  /** The first day of every `months`-th month in view. */
  monthTicks(months) {
    const origin = Number(BigInt(this.run.origin_ns) / 1000000n); // ms
    const first = new Date(origin + this.a / 1e6);
    let month = Math.floor((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
    const out = [];
    for (; out.length < 100; month += months) {
      const t = (new Date(0).setUTCFullYear(Math.floor(month / 12), month % 12, 1) - origin) * 1e6;
      if (t > this.b) break;
      if (t >= this.a) out.push(t);
    }
    return [out, months * 30 * DAY + (months >= 12 ? 5 * DAY * (months / 12) : 0)];
  }

  drawGrid(g) {
    g.fillStyle = this.colour.line;
    g.globalAlpha = 0.6;
    for (const t of this.ticks()[0]) g.fillRect(Math.round(this.x(t)), AXIS, 1, this.h);
    g.globalAlpha = 1;
  }

  drawAxis(g) {
    const [ticks, step] = this.ticks();
    g.fillStyle = this.colour.panel;
    g.fillRect(0, 0, this.w, AXIS);
    g.fillStyle = this.colour.line;
    g.fillRect(0, AXIS - 1, this.w, 1);
    g.fillRect(this.gutter - 1, 0, 1, this.h);
    g.fillStyle = this.colour.soft;
    g.fillText(this.gutter < 100 ? "time (UTC)" : "event time (UTC)", 10, AXIS / 2);
    g.textAlign = "center";
    for (const t of ticks) {
      const label = tickLabel(this.run, t, step);
      const half = g.measureText(label).width / 2;
      const x = this.x(t);
      if (x - half > this.gutter && x + half < this.w - 4) g.fillText(label, x, AXIS / 2);
    }
    g.textAlign = "left";
  }

  /** The most messages under one pixel, over the lanes shown: their common scale. */
  densest(shown) {
    let most = 1;
    for (const row of shown) {
      if (row.strip) continue;
      row.bars = this.run.kinds.map((_, kind) => this.bars(row.stream, kind));
      for (const bars of row.bars) if (bars) for (const n of bars) if (n > most) most = n;
    }
    return most;
  }

  /** Messages per pixel, or null where so few are in view that each is drawn on its own. */
  bars(stream, kind) {
    const { time } = this.run.c;
    const [from, to] = this.run.range(stream, kind);
    const low = bisect(time, this.a, from, to);
    const high = bisect(time, this.b, low, to);
    if (high - low <= SINGLE) return null;
    const width = Math.round(this.w - this.gutter);
    const bars = new Uint32Array(width);
    let before = low;
    for (let p = 0; p < width; p++) {
      const next = bisect(time, this.a + ((p + 1) / width) * (this.b - this.a), before, high);
      bars[p] = next - before;
      before = next;
    }
    return bars;
  }

  drawLane(g, row, dense) {
    const floor = this.floor(row), roof = this.roof(row);
    const room = floor - roof + 4;
    this.drawValues(g, row);
    // the many behind, the few in front: dropped, late, then what is in order, then single marks
    for (const kind of [2, 1, 0]) {
      if (!row.bars[kind]) continue;
      g.fillStyle = this.colour[this.run.kinds[kind]];
      g.globalAlpha = kind ? 0.4 : 1;
      row.bars[kind].forEach((n, p) => {
        if (n) { const h = Math.max(2, (n / dense) * room); g.fillRect(this.gutter + p, floor + 4 - h, 1, h); }
      });
      g.globalAlpha = 1;
    }
    for (const kind of [2, 0]) if (!row.bars[kind]) this.drawEach(g, row.stream, kind, floor, roof, this.colour[this.run.kinds[kind]]);
    this.drawSlots(g, row);
    for (const kind of [1, 3]) {
      if (kind === 3 || !row.bars[kind]) this.drawEach(g, row.stream, kind, floor, roof, this.colour[this.run.kinds[kind]]);
    }
  }

  drawEach(g, stream, kind, floor, roof, colour) {
    const { time, delay, known } = this.run.c;
    const [from, to] = this.run.range(stream, kind);
    // a late message may stand left of the view and arrive inside it
    const low = bisect(time, this.a - (this.b - this.a), from, to);
    const high = bisect(time, this.b, low, to);
    const stride = Math.max(1, Math.ceil((high - low) / MARKS));
    const size = high - low < 250 ? 3.2 : 2.2;
    g.strokeStyle = colour;
    g.fillStyle = colour;
    g.lineWidth = kind === 1 ? 1.4 : 1;
    g.globalAlpha = kind === 1 ? 0.75 : 0.38;
    g.beginPath();
    for (let i = low; i < high; i += stride) {
      if (!known[i] || kind === 3) continue;
      g.moveTo(this.x(time[i]), floor);
      g.lineTo(this.x(time[i] + delay[i]), roof);
    }
    g.stroke();
    g.globalAlpha = 1;
    g.beginPath();
    for (let i = low; i < high; i += stride) {
      const x = this.x(time[i]);
      if (kind === 3) { const m = (floor + roof) / 2; cross(g, x, m, 4.5); continue; }
      if (kind === 1) diamond(g, x, floor, size + 1.6); else disc(g, x, floor, kind ? size + 0.6 : size);
      if (known[i]) disc(g, this.x(time[i] + delay[i]), roof, size - 1);
    }
    if (kind === 3) { g.lineWidth = 2; g.stroke(); } else g.fill();
  }

  drawWatermarks(g) {
    let free = -Infinity;
    g.strokeStyle = this.colour.mark;
    g.fillStyle = this.colour.mark;
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    for (const commit of this.run.health.commits) {
      if (commit.watermark_ns === null) continue;
      const x = this.x(Number(BigInt(commit.watermark_ns) - BigInt(this.run.origin_ns)));
      if (x < this.gutter || x > this.w || x < free - 60) continue;
      g.setLineDash([5, 4]);
      g.lineWidth = 1.3;
      g.beginPath();
      g.moveTo(x, AXIS);
      g.lineTo(x, this.h);
      g.stroke();
      g.setLineDash([]);
      const label = `watermark ${commit.batch}`;
      const width = g.measureText(label).width + 8;
      if (x - width > free && x - width > this.gutter) {
        g.globalAlpha = 0.9;
        g.fillStyle = this.colour.panel;
        g.fillRect(x - width - 2, this.h - 19, width, 15);
        g.globalAlpha = 1;
        g.fillStyle = this.colour.mark;
        g.fillText(label, x - width + 2, this.h - 11);
        free = x;
      }
    }
  }

  drawPicked(g) {
    const { picked, run } = this;
    if (!picked) return;
    const { time, delay, known, stream } = run.c;
    const width = run.groups ? run.groups.topics.length : 0;
    const list = picked.message !== undefined ? [picked.message] : [];
    g.strokeStyle = this.colour.pick;
    g.lineWidth = 2;
    if (picked.group >= 0 && run.groups && run.groups.what === "set") {
      const place = this.floors(this.rows);
      g.beginPath();
      this.link(g, picked.group, width, run.c.members, time, place);
      g.stroke();
      for (let m = 0; m < width; m++) if (run.c.members[picked.group * width + m] >= 0) list.push(run.c.members[picked.group * width + m]);
    }
    for (const i of list) {
      const row = this.rows.find((r) => r.stream === stream[i]);
      if (!row) continue;
      const floor = this.floor(row), roof = this.roof(row);
      g.beginPath();
      if (run.c.kind[i] === 3) disc(g, this.x(time[i]), (floor + roof) / 2, 8);
      else {
        disc(g, this.x(time[i]), floor, 6.5);
        if (known[i]) { g.moveTo(this.x(time[i]), floor); g.lineTo(this.x(time[i] + delay[i]), roof); }
      }
      g.stroke();
    }
  }

  /** The whole run: how many messages, and where the exceptions are. */
  drawOverview() {
    const { run } = this;
    const canvas = this.overview;
    const w = canvas.clientWidth, h = 36;
    const g = canvas.getContext("2d");
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.clearRect(0, 0, w, h);
    const [a, b] = run.fit;
    if (!this.totals || this.totals.width !== w) this.totals = this.sumUp(w, a, b);
    const { data, marks, most } = this.totals;
    g.fillStyle = this.colour.data;
    g.globalAlpha = 0.7;
    for (let p = 0; p < w; p++) { const n = (data[p] / most) * (h - 10); if (n) g.fillRect(p, h - n, 1, n); }
    g.globalAlpha = 1;
    marks.forEach((mark, kind) => {
      g.fillStyle = this.colour[run.kinds[kind]];
      for (let p = 0; p < w; p++) if (mark[p]) g.fillRect(p, 1 + (kind - 1) * 3, 2, 3);
    });
    const left = ((this.a - a) / (b - a)) * w, right = ((this.b - a) / (b - a)) * w;
    g.fillStyle = this.colour.brush;
    g.fillRect(left, 0, Math.max(right - left, 2), h);
    g.strokeStyle = this.colour.mark;
    g.lineWidth = 1.5;
    g.strokeRect(left, 0.5, Math.max(right - left, 2), h - 1);
  }

  sumUp(width, a, b) {
    const { time, kind } = this.run.c;
    const data = new Uint32Array(width);
    const marks = this.run.kinds.map(() => new Uint8Array(width));
    for (let i = 0; i < time.length; i++) {
      const p = Math.floor(((time[i] - a) / (b - a)) * width);
      if (p < 0 || p >= width) continue;
      if (kind[i]) marks[kind[i]][p] = 1; else data[p]++;
    }
    let most = 1;
    for (const n of data) if (n > most) most = n;
    return { data, marks, most, width };
  }
}

function disc(g, x, y, r) { g.moveTo(x + r, y); g.arc(x, y, r, 0, 6.2832); }
function diamond(g, x, y, r) { g.moveTo(x, y - r); g.lineTo(x + r, y); g.lineTo(x, y + r); g.lineTo(x - r, y); g.closePath(); }
function cross(g, x, y, r) { g.moveTo(x - r, y - r); g.lineTo(x + r, y + r); g.moveTo(x + r, y - r); g.lineTo(x - r, y + r); }
