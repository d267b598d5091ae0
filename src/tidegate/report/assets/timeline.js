// The timeline: what is in view, and how wheel, mouse and keys move it.

const WIN = 8; // pixels within which an exception wins a click
const REACH = 14; // pixels within which a message is meant at all

class Timeline extends LanesWithGroups {
  constructor(run, canvas, overview, scroller, onPick) {
    super();
    Object.assign(this, { run, canvas, overview, scroller, onPick });
    [this.a, this.b] = run.opening.view;
    this.key = run.opening.key;
    this.picked = null;
    this.top = 0;
    this.frames = [];
    this.listen();
  }

  /** Take up a newer state of the same run; what is in view stays in view. */
  replace(run) {
    const before = this.run;
    const whole = this.a === before.fit[0] && this.b === before.fit[1];
    const shift = Number(BigInt(before.origin_ns) - BigInt(run.origin_ns));
    const name = before.keys[this.key];
    this.run = run;
    this.totals = null;
    this.picked = null;
    if (whole) [this.a, this.b] = run.fit; else { this.a += shift; this.b += shift; }
    this.key = this.key < 0 ? -1 : Math.max(run.keys.indexOf(name), 0);
    this.layOut();
    this.request();
  }

  show(key) { this.key = key; this.layOut(); this.draw(); }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.w = Math.max(200, this.scroller.clientWidth);
    this.gutter = this.w < 560 ? 84 : 128;
    this.h = Math.max(80, this.scroller.clientHeight);
    for (const [canvas, w, h] of [[this.canvas, this.w, this.h], [this.overview, this.overview.clientWidth, 36]]) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
    }
    this.canvas.style.width = `${this.w}px`;
    this.canvas.style.height = `${this.h}px`;
    this.ratio = ratio;
    document.getElementById("tall").style.height = `${this.height}px`;
    const css = getComputedStyle(document.documentElement);
    this.colour = {};
    for (const name of ["panel", "ink", "soft", "line", "row", "data", "late", "dropped", "error", "mark", "set", "pick", "brush"]) {
      this.colour[name] = css.getPropertyValue(`--${name}`).trim();
    }
  }

  request() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  draw() {
    const began = performance.now();
    if (this.laidOutFor !== this.scroller.clientHeight) this.layOut(); // before its observer is told
    this.resize();
    const g = this.canvas.getContext("2d");
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.clearRect(0, 0, this.w, this.h);
    g.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    const top = this.scroller.scrollTop;
    const shown = this.rows.filter((row) => row.y + row.h - top > AXIS && row.y - top < this.h);
    this.top = top;
    shown.forEach((row, i) => this.drawBand(g, row, i));
    this.clip(g, () => this.drawGrid(g));
    const dense = this.densest(shown);
    this.clip(g, () => { for (const row of shown) if (row.strip) this.drawStrip(g, row); });
    this.clip(g, () => { for (const row of shown) if (!row.strip) this.drawLane(g, row, dense); });
    this.clip(g, () => this.drawLinks(g, shown));
    this.clip(g, () => this.drawWatermarks(g));
    this.clip(g, () => this.drawPicked(g));
    for (const row of shown) this.drawLabel(g, row);
    this.drawAxis(g);
    this.drawOverview();
    this.frames.push(performance.now() - began);
    if (this.frames.length > 100) this.frames.shift();
    document.getElementById("span").textContent = `${span(this.b - this.a)} from ${absolute(this.run, this.a).replace(/(\.\d{3})\d+/, "$1")}`;
  }

  zoom(factor, at = (this.a + this.b) / 2) {
    const span = Math.min(Math.max((this.b - this.a) * factor, 1000), 4e18);
    const share = (at - this.a) / (this.b - this.a);
    this.a = at - share * span;
    this.b = this.a + span;
    this.request();
  }

  pan(ns) { this.a += ns; this.b += ns; this.request(); }

  fit() { [this.a, this.b] = this.run.fit; this.request(); }

  /** Bring a message into view with its neighbours. */
  reveal(message, around = 4e8) {
    const at = this.run.c.time[message];
    this.a = at - around;
    this.b = at + around;
    this.request();
  }

  listen() {
    const { canvas, overview, scroller } = this;
    canvas.addEventListener("wheel", (event) => {
      if (event.shiftKey) return; // the lanes scroll
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX / this.w) * (this.b - this.a));
      else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), this.t(event.offsetX));
    }, { passive: false });
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, y: event.clientY, a: this.a, b: this.b, top: scroller.scrollTop, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const moved = event.offsetX - drag.x;
      if (Math.abs(moved) + Math.abs(event.clientY - drag.y) > 4) drag.moved = true;
      if (!drag.moved) return;
      const shift = (moved / (this.w - this.gutter)) * (drag.b - drag.a);
      this.a = drag.a - shift;
      this.b = drag.b - shift;
      scroller.scrollTop = drag.top - (event.clientY - drag.y);
      this.request();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.pick(event.offsetX, event.offsetY);
      drag = null;
    });
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("keydown", (event) => {
      const step = (this.b - this.a) / 8;
      const act = { ArrowLeft: () => this.pan(-step), ArrowRight: () => this.pan(step), "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1.6), 0: () => this.fit() }[event.key];
      if (act) { act(); event.preventDefault(); }
    });
    const go = (event) => {
      if (event.buttons !== 1) return;
      const [a, b] = this.run.fit;
      const at = a + (event.offsetX / overview.clientWidth) * (b - a);
      const half = (this.b - this.a) / 2;
      this.a = at - half;
      this.b = at + half;
      this.request();
    };
    overview.addEventListener("pointerdown", go);
    overview.addEventListener("pointermove", go);
    scroller.addEventListener("scroll", () => this.request());
    new ResizeObserver(() => { this.layOut(); this.request(); }).observe(scroller);
  }

  pick(x, y) {
    const row = this.rows.find((r) => y + this.top >= r.y && y + this.top < r.y + r.h);
    if (!row || y < AXIS || x < this.gutter) return;
    this.picked = row.strip ? this.groupAt(row, x) : this.nearest(row, x, y);
    this.onPick(this.picked);
    this.request();
  }

  select(picked) { this.picked = picked; this.onPick(picked); this.request(); }

  /** The message nearest to a point of a lane: by event time below, by arrival above. A late, dropped
   * or error mark wins over data that is as near, because it is what one looks for. */
  nearest(row, x, y) {
    const upper = y < (this.floor(row) + this.roof(row)) / 2;
    let best = null;
    for (const kind of [3, 1, 2]) {
      const found = this.nearestOf(row.stream, kind, x, upper, WIN);
      if (found && (!best || found.off < best.off)) best = found;
    }
    best = best || this.nearestOf(row.stream, 0, x, upper, REACH);
    for (const kind of best ? [] : [3, 1, 2]) best = best || this.nearestOf(row.stream, kind, x, upper, REACH);
    return best && { message: best.i, group: this.run.groups ? this.run.c.group[best.i] : -1 };
  }

  /** The nearest message of one kind within `reach` pixels, and how far off it is. */
  nearestOf(stream, kind, x, upper, reach) {
    const { time, delay, known } = this.run.c;
    const [from, to] = this.run.range(stream, kind);
    let low = bisect(time, this.a - (this.b - this.a), from, to);
    let high = bisect(time, this.b, low, to);
    if (high - low > MARKS) { low = Math.max(bisect(time, this.t(x), from, to) - 1, from); high = Math.min(low + 2, to); }
    let best = null;
    for (let i = low; i < high; i++) {
      const at = upper && known[i] && kind !== 3 ? time[i] + delay[i] : time[i];
      const off = Math.abs(this.x(at) - x);
      if (off < reach && (!best || off < best.off)) best = { i, off };
    }
    return best;
  }

  groupAt(row, x) {
    const { groupStart, groupEnd } = this.run.c;
    const of = this.run.groupsOf[row.key];
    const t = this.t(x), slack = this.t(x + 5) - t;
    const first = bisect(of.starts, t - of.longest - slack, 0, of.list.length);
    const last = bisect(of.starts, t + slack, first, of.list.length);
    let best = -1, off = Infinity;
    for (let n = first; n < last; n++) {
      const group = of.list[n];
      if (groupEnd[group] + slack < t) continue;
      const away = Math.abs((groupStart[group] + groupEnd[group]) / 2 - t);
      if (away < off) { off = away; best = group; }
    }
    return best < 0 ? null : { group: best };
  }
}
