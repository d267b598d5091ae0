// Health: how streams and run fared, as charts by uPlot and a table.

function drawHealth(run, root) {
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(`--${name}`).trim();
  const palette = [colour("data"), colour("late"), colour("mark"), colour("dropped"), colour("error"), colour("set"), colour("ink")];
  const axis = { stroke: colour("soft"), grid: { stroke: colour("row"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
  const { health } = run;
  const grid = element("div", { class: "health" });
  fill(root, grid);

  const card = (title, text, wide) => {
    const made = element("section", { class: wide ? "card wide" : "card", "aria-label": title, tabindex: wide ? 0 : null }, element("h2", null, title), element("p", null, text));
    grid.append(made);
    return made;
  };
  const charts = []; // drawn when all cards are in place: only then their width is known
  const chart = (home, options, data) => charts.push(() => {
    const width = Math.max(240, home.clientWidth - 30);
    const { xAxis = {}, yAxis = {}, ...rest } = options;
    return new uPlot({ width, height: 210, legend: { live: false }, cursor: { drag: { x: true, y: false } }, ...rest,
      axes: [{ ...axis, ...xAxis }, { ...axis, size: 62, ...yAxis }] }, data, home);
  });
  const spanAxis = { values: (_, list) => list.map((v) => (v === null ? "" : brief(v))) };

  const histogramCard = (title, text, edges, series) => {
    if (!edges || edges.length < 2) return;
    const home = card(title, text);
    const labels = edges.slice(0, -1);
    const numbers = labels.map((_, i) => i);
    const bars = uPlot.paths.bars({ size: [0.9, 40], align: 1 });
    const sum = (counts) => counts.reduce((a, b) => a + b, 0);
    const shown = series.filter(([, counts]) => counts).sort((a, b) => sum(b[1]) - sum(a[1])); // the few in front
    chart(home, {
      scales: { x: { time: false, range: [0, labels.length] }, y: { distr: 3, range: (_, low, high) => [0.6, Math.max(high * 1.5, 10)] } },
      xAxis: { values: (_, list) => list.map((v) => (Number.isInteger(v) && edges[v] !== undefined ? brief(edges[v]) : "")), space: 70 },
      yAxis: { values: (_, list) => list.map((v) => (v >= 1 && Math.log10(v) % 1 === 0 ? whole(v) : "")) },
      series: [{}, ...shown.map(([name, , c]) => ({ label: name, stroke: colour(c), fill: colour(c), paths: bars, points: { show: false } }))],
    }, [numbers, ...shown.map(([, counts]) => counts.map((n) => n || null))]);
  };

  const quantiles = (q) => `half within ${span(q.p50)}, 99 % within ${span(q.p99)}, all within ${span(q.max)}`;
  if (health.delay) {
    histogramCard("Delay", `from event time to arrival: ${quantiles(health.delay.quantiles)}`, health.delay.edges_ns,
      [["in order", health.delay.data, "data"], ["late", health.delay.late, "late"], ["dropped", health.delay.dropped, "dropped"]]);
  }
  if (health.lateness) histogramCard("Lateness", `how far behind the watermark late rows came: ${quantiles(health.lateness.quantiles)}`, health.lateness.edges_ns, [["late", health.lateness.late, "late"]]);
  if (health.decision) {
    const { decision } = health;
    const name = { set: "sets", batch: "batches", window: "windows" }[decision.what];
    const words = decision.what === "set" ? "from a set's newest member to the message that decided it" : `from the end of a ${decision.what} to the last arrival of the micro-batch that brought it`;
    histogramCard("Decision delay", `${words}: ${quantiles(decision.quantiles)}`, decision.edges_ns, [[name, decision.counts, "mark"]]);
    if (decision.spread_edges_ns) histogramCard("Spread of sets", `from the first to the last member: ${quantiles(decision.spread_quantiles)}`, decision.spread_edges_ns, [["sets", decision.spread_counts, "data"]]);
  }
  if (health.rate) {
    const home = card("Rate", "messages per second and key, by event time");
    const names = Object.keys(health.rate.per_key_hz);
    const begin = health.rate.at_s[0];
    chart(home, {
      scales: { x: { time: false } },
      xAxis: { values: (_, list) => list.map((v) => `${+v.toFixed(3)} s`), space: 70 },
      yAxis: { values: (_, list) => list.map((v) => `${v} Hz`) },
      series: [{}, ...names.map((name, i) => ({ label: name || "messages", stroke: palette[i % palette.length], width: 1.5, points: { show: false } }))],
    }, [health.rate.at_s.map((t) => t - begin), ...names.map((name) => health.rate.per_key_hz[name])]);
  }
  const { commits } = health;
  const at = commits.map((commit) => commit.batch);
  const perCommit = (title, text, series, yAxis) => {
    if (!commits.some((commit) => series.some(([, of]) => of(commit)))) return;
    chart(card(title, text), {
      scales: { x: { time: false, range: (_, low, high) => [low - 0.5, high + 0.5] }, y: { range: (_, low, high) => [0, (high || 1) * 1.1] } },
      xAxis: { values: (_, list) => list.map((v) => (Number.isInteger(v) ? v : "")) },
      yAxis,
      series: [{}, ...series.map(([label, , c]) => ({ label, stroke: colour(c), width: 2, points: { show: true, size: 6 } }))],
    }, [at, ...series.map(([, of]) => commits.map(of))]);
  };
  perCommit("Watermark lag", "per micro-batch: the newest event time seen less the slowest watermark", [["lag", (c) => c.lag_ns, "mark"]], spanAxis);
  perCommit("Rows per micro-batch", "what each commit delivered, and what was still held", [["in order", (c) => c.rows.data || 0, "data"], ["late", (c) => c.rows.late || 0, "late"], ["held", (c) => c.held, "set"]], { values: (_, list) => list.map(whole) });
  perCommit("State", "bytes kept between micro-batches", [["bytes", (c) => c.state_bytes, "dropped"]], { values: (_, list) => list.map((v) => `${whole(Math.round(v / 1024))} K`) });
  if (commits.some((commit) => commit.chains)) {
    const level = (name) => (c) => (c.chains ? c.chains[name] : null);
    perCommit("Chain length", "deltas per chain that no checkpoint holds yet, on average over all chains", [["mean length", level("length"), "data"]], { values: (_, list) => list.map((v) => +v.toFixed(1)) });
    const { compaction } = health;
    if (compaction) {
      const of = (name) => (c) => (compaction.by_batch[c.batch] ? compaction.by_batch[c.batch][name] : null);
      const saved = compaction.bytes_before ? ` ${(compaction.bytes_before / Math.max(compaction.bytes_after, 1)).toFixed(1)} times fewer bytes;` : "";
      perCommit("Compaction", `${whole(compaction.count)} so far;${saved} mean deltas of a chain before and after, longest ${whole(compaction.before.max)}`, [["before", of("before"), "late"], ["after", of("after"), "mark"]], { values: (_, list) => list.map(whole) });
    }
  }
  if (health.chains) {
    const { chains } = health;
    const all = chains.count === chains.rows.length ? "" : `; here are the ${chains.rows.length} with most compactions`;
    const home = card("Chain history", `${whole(chains.count)} chains were compacted${all}. Deltas of the chosen chain before and after each compaction, by event time since the first`, true);
    const place = element("div", null);
    let drawn = null;
    const buttons = chains.rows.map((chain) => element("button", { type: "button", "aria-pressed": "false", onclick: () => choose(chain) }, chain.chain || "–"));
    const draw = (chain) => new uPlot({ width: Math.max(240, home.clientWidth - 30), height: 210, legend: { live: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high || 1) * 1.1] } },
      series: [{}, ...[["before", "late"], ["after", "mark"]].map(([label, c]) => ({ label, stroke: colour(c), width: 2, points: { show: true, size: 6 } }))],
      axes: [{ ...axis, values: (_, list) => list.map((v) => `${+v.toFixed(3)} s`), space: 70 }, { ...axis, size: 62, values: (_, list) => list.map(whole) }] },
    [chain.at_s, chain.before, chain.after], place);
    const choose = (chain) => {
      if (drawn) drawn.destroy();
      drawn = draw(chain);
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(chains.rows[i] === chain)));
    };
    home.append(place, element("table", null, element("tr", null, ["chain", "compactions", "deltas folded", "longest", "bytes saved", "strategy"].map((name) => element("th", null, name))),
      chains.rows.map((c, i) => element("tr", null, [buttons[i], whole(c.compactions), whole(c.folded), whole(c.longest), whole(c.bytes_saved), c.strategy].map((cell) => element("td", null, cell))))));
    charts.push(() => choose(chains.rows[0]));
  }
  if (health.diagnosis) {
    const { diagnosis } = health;
    const home = card("Diagnosis of sets", `${whole(diagnosis.healthy)} of ${whole(diagnosis.keys)} keys are healthy; the newest word on each key`, true);
    home.append(element("table", null, element("tr", null, ["key", "problem", "topic", "what it means"].map((name) => element("th", null, name))),
      diagnosis.rows.map((d) => element("tr", null, [d.key || "–", d.problem, d.topic || "–", d.text].map((cell) => element("td", null, cell))))));
  }
  const streams = card("Streams", "period: the median step between neighbours; jitter: what a step is off whole periods; a gap is more than three periods", true);
  const heads = ["stream", "keys", "messages", "rate", "period", "jitter p50", "jitter p99", "gaps", "longest pause", "missing", "same time twice"];
  const cells = (s) => [s.topic || "messages", whole(s.streams), whole(s.rows), s.rate_hz ? `${+s.rate_hz.toPrecision(4)} Hz` : "–", span(s.period_ns), span(s.jitter.p50), span(s.jitter.p99), whole(s.gaps), span(s.longest_gap_ns), whole(s.missing), whole(s.duplicates)];
  streams.append(element("table", null, element("tr", null, heads.map((name) => element("th", null, name))),
    health.streams.map((s) => element("tr", null, cells(s).map((cell) => element("td", null, cell))))));
  if (health.waiting) streams.append(element("p", null, `Rows in order were held ${quantiles(health.waiting.quantiles)}, from their arrival to the last arrival of the micro-batch that delivered them.`));
  for (const make of charts) make();
}
