// Sets, batches and windows: strips above the lanes, links and empty slots inside them.

const BATCH_COLOURS = new Map([["gate", "mark"], ["timeout", "late"], ["gap", "dropped"], ["stall", "error"], ["limit", "error"]]);

class LanesWithGroups extends LanesWithPictures {
  drawStrip(g, row) {
    const { run } = this;
    const { groupStart, groupEnd } = run.c;
    const of = run.groupsOf[row.key];
    const first = bisect(of.starts, this.a - of.longest, 0, of.list.length);
    const last = bisect(of.starts, this.b, first, of.list.length);
    const y = row.y - this.top;
    const stride = Math.max(1, Math.ceil((last - first) / 4000));
    const levels = run.groups.what === "window" ? 3 : 1;
    const ends = new Array(levels).fill(-Infinity);
    const h = (row.h - 8) / levels;
    for (let n = first; n < last; n += stride) {
      const group = of.list[n];
      const left = this.x(groupStart[group]);
      const right = Math.max(this.x(groupEnd[group]), left + 2);
      let level = ends.findIndex((end) => end <= groupStart[group]);
      if (level < 0) level = ends.indexOf(Math.min(...ends));
      ends[level] = groupEnd[group];
      g.fillStyle = this.groupColour(group);
      g.globalAlpha = this.picked && this.picked.group === group ? 0.85 : 0.35;
      g.fillRect(left, y + 4 + level * h, Math.max(right - left - 1, 1.5), h - 2);
      g.globalAlpha = 1;
      const label = this.groupLabel(group);
      if (right - left > 40) {
        g.fillStyle = this.colour.ink;
        const visible = Math.max(left, this.gutter);
        const room = Math.min(right, this.w) - visible - 10;
        if (room > 30) g.fillText(fitted(g, label, room), visible + 5, y + 4 + level * h + (h - 2) / 2 + 0.5);
      }
    }
  }

  /** Empty slots of the batches in view, as hollow rings. */
  drawSlots(g, row) {
    const { run } = this;
    if (!run.groups || run.groups.what !== "batch") return;
    const { time, slot, group, groupEnd, groupStart } = run.c;
    const of = run.groupsOf[row.key];
    const floor = this.floor(row);
    const [from, to] = run.range(row.stream, 0);
    const first = bisect(of.starts, this.a - of.longest, 0, of.list.length);
    const last = bisect(of.starts, this.b, first, of.list.length);
    if (last - first > 60) return;
    g.strokeStyle = this.colour.error;
    g.lineWidth = 1.3;
    g.beginPath();
    for (let n = first; n < last; n++) {
      const batch = of.list[n];
      const report = run.groups.report && run.groups.report[batch][0];
      const stream = report && report.streams && report.streams.find((s) => s.stream === run.topics[row.topic]);
      if (!stream || !stream.missing || this.x(groupEnd[batch]) - this.x(groupStart[batch]) < 5 * stream.expected) continue;
      const margin = groupEnd[batch] - groupStart[batch];
      const low = bisect(time, groupStart[batch] - margin, from, to), high = bisect(time, groupEnd[batch] + margin, from, to);
      const seen = new Map();
      for (let i = low; i < high; i++) if (group[i] === batch && slot[i] >= 0 && !seen.has(slot[i])) seen.set(slot[i], time[i]);
      const places = [...seen.keys()].sort((p, q) => p - q);
      if (places.length < 2) continue;
      const [one, other] = [places[0], places[places.length - 1]];
      const period = (seen.get(other) - seen.get(one)) / (other - one);
      for (let s = 0; s < stream.expected; s++) if (!seen.has(s)) disc(g, this.x(seen.get(one) + (s - one) * period), floor, 3.4);
    }
    g.stroke();
  }

  groupColour(group) {
    const { groups, c } = this.run;
    if (groups.what === "set") return this.colour.set;
    if (groups.what === "window") return c.group_revision && c.group_revision[group] > 0 ? this.colour.late : this.colour.mark;
    const reason = groups.reason && groups.reason[group];
    return this.colour[BATCH_COLOURS.get(reason) || "set"];
  }

  groupLabel(group) {
    const { groups, c } = this.run;
    if (groups.what === "set") return span(c.group_spread_ns[group]);
    if (groups.what === "batch") return `${c.group_id[group]} ${groups.reason ? groups.reason[group] : ""}`;
    const revision = c.group_revision && c.group_revision[group] > 0 ? ` r${c.group_revision[group]}` : "";
    return `${groups.trigger ? groups.trigger[group] : ""}${revision}`;
  }

  /** Sets as lines through their members, where few enough are in view to be told apart. */
  drawLinks(g, shown) {
    const { run } = this;
    if (!run.groups || run.groups.what !== "set") return;
    const { members, time } = run.c;
    const width = run.groups.topics.length;
    const place = this.floors(shown);
    for (const key of new Set(shown.map((row) => row.key))) {
      const of = run.groupsOf[key];
      const first = bisect(of.starts, this.a - of.longest, 0, of.list.length);
      const last = bisect(of.starts, this.b, first, of.list.length);
      if (last - first > (this.w - this.gutter) / 14) continue; // lines closer than this are a blur
      g.strokeStyle = this.colour.mark;
      g.globalAlpha = 0.65;
      g.lineWidth = 1.2;
      g.beginPath();
      for (let n = first; n < last; n++) this.link(g, of.list[n], width, members, time, place);
      g.stroke();
      g.globalAlpha = 1;
    }
  }

  link(g, group, width, members, time, place) {
    const points = [];
    for (let m = 0; m < width; m++) {
      const i = members[group * width + m];
      if (i < 0) continue;
      const y = place.get(this.run.c.stream[i]);
      if (y !== undefined) points.push([this.x(time[i]), y]);
    }
    points.sort((p, q) => p[1] - q[1]);
    points.forEach(([x, y], n) => (n ? g.lineTo(x, y) : g.moveTo(x, y)));
  }
}
