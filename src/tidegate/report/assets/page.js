// Puts the page together: header, list of keys, timeline, health.

const MOST_KEYS = 500; // entries in the list of keys; the filter finds the others

/** How many messages of a key are late, dropped or errors. */
function troubled(run, key) {
  const kinds = run.kinds.length;
  let sum = 0;
  for (let t = 0; t < run.topics.length; t++) {
    const stream = key * run.topics.length + t;
    sum += run.starts[(stream + 1) * kinds] - run.starts[stream * kinds + 1];
  }
  return sum;
}

class Page {
  constructor(run) {
    this.run = run;
    this.details = new Details(run, byId("details"));
    this.timeline = new Timeline(run, byId("lanes"), byId("overview"), byId("scroller"), (picked) => this.details.show(picked));
    this.header();
    this.timeline.show(run.opening.key);
    this.listKeys();
    this.listen();
  }

  /** Show a newer state of the run without losing what is in view. */
  replace(run) {
    this.run = run;
    this.details.run = run;
    this.details.show(null);
    this.timeline.replace(run);
    this.header();
    this.listKeys();
    if (!byId("health").hidden) drawHealth(run, byId("health"));
  }

  header() {
    const { run } = this;
    byId("run").textContent = run.title;
    byId("run").title = run.title;
    byId("headline").textContent = run.headline;
    const what = run.groups ? { set: "sets", batch: "in batches", window: "window rows" }[run.groups.what] : run.counts.compactions ? "vectors" : "in order";
    const counts = Object.entries(run.counts).map(([kind, n]) => element("span", null, element("i", { class: `dot ${kindClass(kind)}` }), `${whole(n)} ${kind === "data" ? what : kind}`));
    if (run.shown < run.total) counts.push(element("span", { title: "a page holds at most --limit messages" }, `${whole(run.shown)} of ${whole(run.total)} messages shown`));
    if (run.since !== null) counts.push(element("span", { title: "a live page shows the newest messages; tidegate view shows all" }, `from micro-batch ${whole(run.since)} on`));
    fill(byId("counts"), counts);
    this.legend();
  }

  legend() {
    const { run } = this;
    const batches = run.groups && run.groups.what === "batch";
    const entries = [
      [run.counts.data, "data", "●", run.groups ? { set: "in a set", batch: "in a batch", window: "in a window" }[run.groups.what] : "in order"],
      [run.counts.late, "late", "◆", "late"],
      [run.counts.dropped, "dropped", "●", "dropped"],
      [run.counts.error, "error", "✕", "error"],
      [batches, "error", "○", "empty slot"],
      [run.health.commits.some((c) => c.watermark_ns), "mark", "┆", "watermark"],
    ];
    fill(byId("legend"), entries.filter(([there]) => there).map(([, kind, sign, name]) => element("span", null, element("b", { class: `ink-${kind}` }, sign), ` ${name}`)));
  }

  listKeys() {
    const { run, timeline } = this;
    const wanted = byId("filter").value.toLowerCase();
    const entries = [...(run.keys.length > 1 ? [[-1, "all keys", 0]] : []), ...run.keys.map((name, k) => [k, name || "all messages", troubled(run, k)])]
      .filter(([key, name]) => key < 0 || name.toLowerCase().includes(wanted));
    const items = entries.slice(0, MOST_KEYS).map(([key, name, trouble]) => {
      const choose = () => { timeline.show(key); this.listKeys(); };
      return element("li", { tabindex: 0, role: "option", "aria-selected": timeline.key === key, title: name, onclick: choose, onkeydown: (event) => { if (event.key === "Enter") choose(); } },
        element("span", null, name), trouble ? element("small", { title: "late, dropped or error" }, whole(trouble)) : "");
    });
    if (entries.length > MOST_KEYS) items.push(element("li", null, "… filter to see more"));
    fill(byId("keylist"), items);
    byId("keys").hidden = run.keys.length <= 1;
    document.documentElement.classList.toggle("one-key", run.keys.length <= 1);
  }

  listen() {
    const { timeline } = this;
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    byId("filter").oninput = () => this.listKeys();
    byId("zoom-in").onclick = () => timeline.zoom(0.5);
    byId("zoom-out").onclick = () => timeline.zoom(2);
    byId("fit").onclick = () => timeline.fit();
    byId("theme").onclick = () => this.theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    dark.addEventListener("change", () => this.theme(dark.matches ? "dark" : "light"));
    for (const name of ["timeline", "health"]) byId(`tab-${name}`).onclick = () => this.tab(name);
    let resized = 0;
    window.addEventListener("resize", () => {
      clearTimeout(resized);
      resized = setTimeout(() => { if (!byId("health").hidden) drawHealth(this.run, byId("health")); }, 150);
    });
  }

  tab(name) {
    for (const other of ["timeline", "health"]) {
      byId(other).hidden = other !== name;
      byId(`tab-${other}`).setAttribute("aria-selected", String(other === name));
    }
    if (name === "health") drawHealth(this.run, byId("health")); else this.timeline.request();
  }

  theme(theme) {
    document.documentElement.dataset.theme = theme;
    this.timeline.request();
    if (!byId("health").hidden) drawHealth(this.run, byId("health"));
  }
}

async function main() {
  const asked = new URLSearchParams(location.hash.slice(1)).get("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = ["dark", "light"].includes(asked) ? asked : dark ? "dark" : "light";
  const page = new Page(await load(embedded()));
  byId("loading").hidden = true;
  page.timeline.layOut();
  page.timeline.draw();
  if (page.run.live) follow(page);
  window.tidegate = page; // for tests and for the curious
}

main().catch((error) => { byId("loading").textContent = `The page could not be opened: ${error.message}`; throw error; });
