// What a click says: where a message went and why; what a set, a batch or a window holds.

class Details {
  constructor(run, element) { Object.assign(this, { run, element }); this.show(null); }

  show(picked) {
    if (!picked) {
      this.element.innerHTML = `<h2>Click a message</h2><p class="hint">In a lane, the lower row is event time, the upper one is
        arrival; a line joins the two. Wheel: zoom. Drag: move. Double click: the whole run.</p>`;
    } else if (picked.message !== undefined) this.message(picked.message);
    else this.group(picked.group);
  }

  message(i) {
    const { run } = this;
    const { c } = run;
    const kind = run.kinds[c.kind[i]];
    const key = Math.floor(c.stream[i] / Math.max(run.topics.length, 1));
    const topic = c.stream[i] % Math.max(run.topics.length, 1);
    const rows = [];
    if (run.keys[key]) rows.push([run.roles.key.join(" / ") || "key", run.keys[key]]);
    if (run.topics[topic]) rows.push([run.roles.topic || "topic", run.topics[topic]]);
    rows.push(["event time", kind === "error" ? "none that could be used" : absolute(run, c.time[i])]);
    if (c.known[i]) {
      rows.push(["arrival", absolute(run, c.time[i] + c.delay[i])]);
      if (kind !== "error") rows.push(["delay", span(c.delay[i])]);
    }
    if (kind === "late") rows.push(["lateness", span(c.lateness[i])]);
    rows.push(["micro-batch", c.micro[i]]);
    if (c.slot[i] !== -2147483648) rows.push(["slot", c.slot[i] < 0 ? `${c.slot[i]} (before its batch)` : c.slot[i]]);
    this.element.innerHTML = `<h2><span class="went" style="background:var(--${kind})">${kind}</span></h2>
      <p id="why">${this.why(i, kind)}</p>${table(rows)}`;
    if (kind === "data" && run.groups && c.group[i] >= 0) {
      const holder = document.createElement("div");
      this.element.append(holder);
      holder.innerHTML = this.groupText(c.group[i]);
    }
  }

  why(i, kind) {
    const { c, reasons, groups } = this.run;
    const delay = c.known[i] ? ` It arrived ${span(c.delay[i])} after its time.` : "";
    const reason = reasons[c.reason[i]];
    if (kind === "late") return `Too late by ${span(c.lateness[i])}: when it came, the watermark had passed its time, so it went to the late table instead of being put in order.${delay}`;
    if (kind === "dropped") return `Let go, with the reason: <b>${escaped(reason || "none given")}</b>.${delay}`;
    if (kind === "error") {
      const [column, value, sentence] = (reason || "").split("\x1f");
      return `Could not be used: column <b>${escaped(column)}</b> holds <b>${escaped(value === "" ? "(empty)" : value)}</b>: ${escaped(sentence)}. It did not move time; it is shown where it arrived.`;
    }
    if (groups && c.group[i] >= 0) return `In order, and part of ${{ set: "a set", batch: "a batch", window: "a window" }[groups.what]}.${delay}`;
    return `In order: it came above the watermark, was held until the watermark passed it, and left in micro-batch ${c.micro[i]}.${delay}`;
  }

  group(g) { this.element.innerHTML = this.groupText(g); }

  groupText(g) {
    const { run } = this;
    const { c, groups } = run;
    const rows = [];
    if (groups.what === "set") {
      const width = groups.topics.length;
      for (let m = 0; m < width; m++) {
        const i = c.members[g * width + m];
        rows.push([groups.topics[m], i < 0 ? "missing (optional)" : `+${span(c.time[i] - c.groupStart[g])}`]);
      }
      rows.push(["first member", absolute(run, c.groupStart[g])], ["decided", `${span(c.group_decided[g] - c.groupEnd[g])} after its newest member (event time)`]);
      return `<h2>Set ${g}</h2><p id="set">Spread <b>${span(c.group_spread_ns[g])}</b> from the first to the last of its members.</p>${table(rows)}`;
    }
    rows.push(["from", absolute(run, c.groupStart[g])], ["to", absolute(run, c.groupEnd[g])], ["length", span(c.groupEnd[g] - c.groupStart[g])], [groups.what === "window" && groups.report ? "rows out" : "messages", whole(c.group_rows[g])]);
    if (groups.what === "batch") {
      const reason = groups.reason ? groups.reason[g] : "";
      return `<h2>Batch ${c.group_id[g]}</h2><p id="batch">${BATCH_REASONS[reason] || escaped(reason)}</p>${table(rows)}${this.report(g)}`;
    }
    rows.push(["pane", c.group_pane[g]], ["revision", c.group_revision[g]]);
    return `<h2>Window</h2><p id="window">Emitted by <b>${escaped(groups.trigger ? groups.trigger[g] : "?")}</b>${c.group_revision[g] > 0 ? `, revision ${c.group_revision[g]}: late rows changed it` : ""}.</p>${table(rows)}${this.report(g)}`;
  }

  /** What the batch or window says of itself: one table, and one line per stream. */
  report(g) {
    const reports = this.run.groups.report ? this.run.groups.report[g] : [];
    return reports.map((one) => {
      const plain = Object.entries(one).filter(([, v]) => !Array.isArray(v));
      const lists = Object.values(one).filter((v) => Array.isArray(v) && v.length && typeof v[0] === "object");
      return `<br>${table(plain.map(([k, v]) => [k.replace(/_ns$/, ""), shown(k, v)]))}${lists.map(grid).join("")}`;
    }).join("");
  }
}

function shown(name, value) {
  if (value === null || value === undefined) return "–";
  if (name.endsWith("_ns") && typeof value === "number" && Math.abs(value) < 1e17) return span(value);
  if (name.endsWith("_hz")) return `${+value.toPrecision(4)} Hz`;
  return typeof value === "object" ? JSON.stringify(value) : typeof value === "number" && !Number.isInteger(value) ? +value.toPrecision(6) : value;
}

/** A list of records: one block per record, because the panel is narrow. */
function grid(records) {
  return records.map((record) => {
    const [[, name], ...rest] = Object.entries(record);
    const filled = rest.filter(([, v]) => v !== null && v !== 0);
    return `<h3>${escaped(name)}</h3>${table(filled.map(([k, v]) => [k.replace(/_(ns|hz)$/, ""), shown(k, v)]))}`;
  }).join("");
}

const BATCH_REASONS = {
  first: "What came first: it opens the window for the next.",
  gate: "Closed by its gate: every gated stream had reached its last slot.",
  timeout: "Closed by timeout: time ran past its end before every gated stream had reached its last slot.",
  gap: "Closed after a gap: nothing came for so long that the window was moved on.",
  stall: "Closed after a stall: by the wall clock nothing had closed for too long.",
  limit: "Closed because too many messages waited.",
  flush: "Closed by the end of the stream.",
};

function table(rows) {
  return `<table>${rows.map(([name, value]) => `<tr><td>${escaped(name)}</td><td>${escaped(value)}</td></tr>`).join("")}</table>`;
}
