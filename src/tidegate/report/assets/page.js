// Puts the page together.

function byId(id) { return document.getElementById(id); }

function troubled(run, key) {
  const kinds = run.kinds.length;
  let sum = 0;
  for (let t = 0; t < run.topics.length; t++) {
    const stream = key * run.topics.length + t;
    sum += run.starts[(stream + 1) * kinds] - run.starts[stream * kinds + 1];
  }
  return sum;
}

function listKeys(run, timeline) {
  const list = byId("keylist");
  const wanted = byId("filter").value.toLowerCase();
  list.textContent = "";
  const entries = [...(run.keys.length > 1 ? [[-1, "all keys", 0]] : []), ...run.keys.map((name, k) => [k, name || "all messages", troubled(run, k)])];
  let shown = 0;
  for (const [key, name, trouble] of entries) {
    if (wanted && key >= 0 && !name.toLowerCase().includes(wanted)) continue;
    if (++shown > 500) { list.insertAdjacentHTML("beforeend", "<li>… filter to see more</li>"); break; }
    const item = document.createElement("li");
    item.tabIndex = 0;
    item.setAttribute("aria-selected", String(timeline.key === key));
    item.innerHTML = `<span>${escaped(name)}</span>${trouble ? `<small title="late, dropped or error">${whole(trouble)}</small>` : ""}`;
    item.onclick = () => { timeline.show(key); listKeys(run, timeline); };
    item.onkeydown = (event) => { if (event.key === "Enter") item.onclick(); };
    list.append(item);
  }
}

function header(run) {
  byId("run").textContent = run.title;
  byId("run").title = run.title;
  const known = { data: "data", late: "late", dropped: "dropped", error: "error" };
  const what = run.groups ? { set: "sets", batch: "in batches", window: "window rows" }[run.groups.what] : run.counts.compactions ? "vectors" : "in order";
  byId("counts").innerHTML = Object.entries(run.counts).map(([kind, n]) => `<span><i class="dot" style="background:var(--${known[kind] || "set"})"></i>${whole(n)} ${kind === "data" ? what : kind}</span>`).join("") + (run.shown < run.total ? `<span title="a page holds no more: tidegate view --limit">${whole(run.shown)} of ${whole(run.total)} messages shown</span>` : "") + (run.since !== null ? `<span title="a live page shows the newest messages: tidegate view shows them all">from micro-batch ${whole(run.since)} on</span>` : "");
  const entries = [["data", "●", run.groups ? { set: "in a set", batch: "in a batch", window: "in a window" }[run.groups.what] : "in order"], ["late", "◆", "late"], ["dropped", "●", "dropped"], ["error", "✕", "error"], ["missing", "○", "slot missing"], ["mark", "┆", "watermark"]];
  byId("legend").innerHTML = entries.filter(([kind]) => (kind === "mark" ? run.health.commits.some((c) => c.watermark_ns) : kind === "missing" ? run.groups && run.groups.what === "batch" : run.counts[kind])).map(([kind, sign, name]) => `<span><b style="color:var(--${kind === "missing" ? "error" : kind})">${sign}</b> ${name}</span>`).join("");
}

function switchTheme(theme, timeline, run) {
  document.documentElement.dataset.theme = theme;
  if (timeline) timeline.request();
  if (run && !byId("health").hidden) drawHealth(run, byId("health"));
}

async function main() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const asked = new URLSearchParams(location.hash.slice(1)).get("theme");
  switchTheme(asked || (dark.matches ? "dark" : "light"));
  const run = await load();
  const details = new Details(run, byId("details"));
  const timeline = new Timeline(run, byId("lanes"), byId("overview"), byId("scroller"), (picked) => details.show(picked));
  header(run);
  timeline.show(0);
  listKeys(run, timeline);
  byId("filter").oninput = () => listKeys(run, timeline);
  byId("zoom-in").onclick = () => timeline.zoom(0.5);
  byId("zoom-out").onclick = () => timeline.zoom(2);
  byId("fit").onclick = () => timeline.fit();
  byId("theme").onclick = () => switchTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", timeline, run);
  dark.addEventListener("change", () => switchTheme(dark.matches ? "dark" : "light", timeline, run));
  for (const name of ["timeline", "health"]) {
    byId(`tab-${name}`).onclick = () => {
      for (const other of ["timeline", "health"]) {
        byId(other).hidden = other !== name;
        byId(`tab-${other}`).setAttribute("aria-selected", String(other === name));
      }
      if (name === "health") drawHealth(run, byId("health")); else timeline.request();
    };
  }
  let resized = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => { if (!byId("health").hidden) drawHealth(run, byId("health")); }, 150);
  });
  byId("loading").hidden = true;
  timeline.draw();
  window.tidegate = { run, timeline, details }; // for tests and for the curious
}

main().catch((error) => { byId("loading").textContent = `the page could not be opened: ${error.message}`; throw error; });
