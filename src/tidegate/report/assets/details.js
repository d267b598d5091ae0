// What a click says: where a message went and why; what a set, a batch or a window holds.

const BATCH_REASONS = new Map([
  ["first", "The first batch: its messages open the window for the next one."],
  ["gate", "Closed by its gate: every gated stream reached its last slot."],
  ["timeout", "Closed by timeout: time passed its end before every gated stream reached its last slot."],
  ["gap", "Closed after a gap: no message came for so long that the window was moved on."],
  ["stall", "Closed after a stall: by the wall clock, no batch had closed for too long."],
  ["limit", "Closed because too many messages were waiting."],
  ["flush", "Closed by the end of the stream."],
]);

class Details {
  constructor(run, home) { Object.assign(this, { run, home }); this.show(null); }

  show(picked) {
    if (!picked) fill(this.home, element("h2", null, "Click a message"), element("p", { class: "hint" }, `${this.run.roles.arrival ? "In a lane, the lower row is event time and the upper row is arrival; a line joins the two." : "Each mark is a message at its event time."} Wheel: zoom. Drag: move. Double click: the whole run.`));
    else if (picked.message !== undefined) fill(this.home, this.message(picked.message));
    else fill(this.home, this.group(picked.group));
  }

  message(i) {
    const { run } = this;
    const { c } = run;
    const kind = run.kinds[c.kind[i]];
    const topics = Math.max(run.topics.length, 1);
    const key = run.keys[Math.floor(c.stream[i] / topics)], topic = run.topics[c.stream[i] % topics];
    const rows = [];
    if (key) rows.push([run.roles.key.join(" / ") || "key", key]);
    if (topic) rows.push([run.roles.topic || "topic", topic]);
    rows.push(["event time", kind === "error" ? "none that could be used" : absolute(run, c.time[i])]);
    if (c.known[i]) {
      rows.push(["arrival", absolute(run, c.time[i] + c.delay[i])]);
      if (kind !== "error") rows.push(["delay", span(c.delay[i])]);
    }
    if (kind === "late") rows.push(["lateness", span(c.lateness[i])]);
    if (c.value && c.value[i] === c.value[i]) rows.push([run.values[c.stream[i] % topics], +c.value[i].toPrecision(7)]);
    rows.push(["micro-batch", c.micro[i]]);
    if (c.slot[i] !== -2147483648) rows.push(["slot", c.slot[i] < 0 ? `${c.slot[i]} (before its batch)` : c.slot[i]]);
    return [
      element("h2", null, element("span", { class: `went ${kindClass(kind)}` }, kind)),
      element("p", { id: "why" }, this.why(i, kind)),
      this.picture(i, topic),
      pairs(rows),
      kind === "data" && run.groups && c.group[i] >= 0 ? element("div", null, this.group(c.group[i])) : "",
    ];
  }

  /** The image of a message, if the page has it. */
  picture(i, topic) {
    const found = (this.run.pictures.get(this.run.c.stream[i]) || []).find((each) => each.message === i);
    return found ? element("img", { class: "picture", src: found.image.src, alt: `the image of this message of ${topic || "the run"}` }) : "";
  }

  /** A sentence, as text and emphasised pieces. */
  why(i, kind) {
    const { c, reasons, groups } = this.run;
    const delay = c.known[i] ? ` It arrived ${span(c.delay[i])} after its event time.` : "";
    const reason = reasons[c.reason[i]] || "";
    const strong = (text) => element("b", null, text);
    if (kind === "late") return [`Too late by ${span(c.lateness[i])}: when it arrived, the watermark had already passed its event time, so it went to the late table.${delay}`];
    if (kind === "dropped") return ["Dropped, with the reason: ", strong(reason || "none given"), `.${delay}`];
    if (kind === "error") {
      const [column, value, sentence] = reason.split("\x1f");
      return ["Could not be used: column ", strong(column || "?"), " holds ", strong(value || "(empty)"), `: ${sentence || ""}. It did not move time; it is shown where it arrived.`];
    }
    if (groups && c.group[i] >= 0) return [`In order, and part of ${{ set: "a set", batch: "a batch", window: "a window" }[groups.what]}.${delay}`];
    return [`In order: it arrived above the watermark, was held until the watermark passed it, and left in micro-batch ${c.micro[i]}.${delay}`];
  }

  group(g) {
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
      return [element("h2", null, `Set ${g}`), element("p", { id: "set" }, "Spread ", element("b", null, span(c.group_spread_ns[g])), " from its first to its last member."), pairs(rows)];
    }
    rows.push(["from", absolute(run, c.groupStart[g])], ["to", absolute(run, c.groupEnd[g])], ["length", span(c.groupEnd[g] - c.groupStart[g])], [groups.what === "window" && groups.report ? "rows out" : "messages", whole(c.group_rows[g])]);
    if (groups.what === "batch") {
      const reason = groups.reason ? groups.reason[g] : "";
      return [element("h2", null, `Batch ${c.group_id[g]}`), element("p", { id: "batch" }, BATCH_REASONS.get(reason) || reason), pairs(rows), this.report(g)].flat();
    }
    rows.push(["pane", c.group_pane[g]], ["revision", c.group_revision[g]]);
    const revised = c.group_revision[g] > 0 ? `, revision ${c.group_revision[g]}: late rows changed it` : "";
    return [element("h2", null, "Window"), element("p", { id: "window" }, "Emitted by ", element("b", null, groups.trigger ? groups.trigger[g] : "?"), `${revised}.`), pairs(rows), this.report(g)].flat();
  }

  /** What the batch or window says about itself: one table, and a block per stream. */
  report(g) {
    const reports = this.run.groups.report ? this.run.groups.report[g] : [];
    return reports.flatMap((one) => {
      const plain = Object.entries(one).filter(([, v]) => !Array.isArray(v));
      const lists = Object.values(one).filter((v) => Array.isArray(v) && v.length && typeof v[0] === "object");
      return [element("br"), pairs(plain.map(([k, v]) => [k.replace(/_ns$/, ""), shown(k, v)])), ...lists.flatMap(blocks)];
    });
  }
}

/** A value of a report in words, by the unit in its name. */
function shown(name, value) {
  if (value === null || value === undefined) return "–";
  if (name.endsWith("_ns") && typeof value === "number" && Math.abs(value) < 1e17) return span(value);
  if (name.endsWith("_hz") && typeof value === "number") return `${+value.toPrecision(4)} Hz`;
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "number" && !Number.isInteger(value) ? +value.toPrecision(6) : value;
}

/** A list of records: one block per record, because the panel is narrow. */
function blocks(records) {
  return records.flatMap((record) => {
    const [[, name], ...rest] = Object.entries(record);
    const filled = rest.filter(([, v]) => v !== null && v !== 0);
    return [element("h3", null, name), pairs(filled.map(([k, v]) => [k.replace(/_(ns|hz)$/, ""), shown(k, v)]))];
  });
}
