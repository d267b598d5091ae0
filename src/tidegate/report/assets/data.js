// The columns of a run: unpacked once, then only read.

/** int64 byte planes to Float64 (exact below 2^53 ns, 104 days from the origin). */
async function unpack(packed) {
  const n = packed.n;
  const text = atob(packed.z);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const p = new Uint8Array(await new Response(stream).arrayBuffer());
  const out = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const low = (p[i] | (p[n + i] << 8) | (p[2 * n + i] << 16) | (p[3 * n + i] << 24)) >>> 0;
    const high = p[4 * n + i] | (p[5 * n + i] << 8) | (p[6 * n + i] << 16) | (p[7 * n + i] << 24);
    out[i] = high * 4294967296 + low;
  }
  return out;
}

/** Replace differences by their running sum, in place. */
function summed(values) {
  let total = 0;
  for (let i = 0; i < values.length; i++) { total += values[i]; values[i] = total; }
  return values;
}

/** The first index in [from, to) whose value is not below `wanted`. */
function bisect(values, wanted, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (values[middle] < wanted) from = middle + 1; else to = middle;
  }
  return from;
}

/** What the page was written with. */
function embedded() {
  const data = { facts: JSON.parse(byId("facts").textContent), columns: JSON.parse(byId("columns").textContent) };
  byId("columns").textContent = ""; // as large as everything else together
  return data;
}

/** Everything the page draws from. Messages are sorted by (stream, kind, time). */
async function load({ facts, columns }) {
  const run = facts;
  const names = Object.keys(columns);
  const arrays = await Promise.all(names.map((name) => unpack(columns[name])));
  const c = {};
  names.forEach((name, i) => { c[name] = arrays[i]; });
  for (const name of ["stream", "time", "micro"]) summed(c[name]);
  if (c.value) c.value = new Float32Array(Uint32Array.from(c.value).buffer); // the bits of float32
  run.n = c.time.length;
  run.c = c;
  run.streams = Math.max(run.keys.length * Math.max(run.topics.length, 1), 1);
  // where the messages of each stream and kind begin; one more entry closes the last
  const kinds = run.kinds.length;
  run.starts = new Uint32Array(run.streams * kinds + 1);
  for (let i = 0; i < run.n; i++) run.starts[c.stream[i] * kinds + c.kind[i] + 1]++;
  for (let i = 0; i < run.streams * kinds; i++) run.starts[i + 1] += run.starts[i];
  run.range = (stream, kind) => [run.starts[stream * kinds + kind], run.starts[stream * kinds + kind + 1]];
  run.usualStep = (stream) => usualStep(run, stream);
  run.groupsOf = run.groups ? groupsByKey(run) : null;
  run.pictures = await picturesByStream(run);
  return run;
}

/** The median time between two messages in order of a stream, by some of them; kept, as every frame asks. */
function usualStep(run, stream) {
  run.steps ||= new Map();
  if (!run.steps.has(stream)) {
    const [from, to] = run.range(stream, 0);
    const some = [], skip = Math.max(Math.floor((to - from) / 500), 1);
    for (let i = from + 1; i < to; i += skip) if (run.c.time[i] > run.c.time[i - 1]) some.push(run.c.time[i] - run.c.time[i - 1]);
    some.sort((a, b) => a - b);
    run.steps.set(stream, some.length ? some[some.length >> 1] : 0);
  }
  return run.steps.get(stream);
}

/** Per key, its sets, batches or windows in order of their start, and the longest one. */
function groupsByKey(run) {
  const { groupKey, groupStart, groupEnd } = run.c;
  const lists = run.keys.map(() => []);
  for (let g = 0; g < groupKey.length; g++) lists[groupKey[g]].push(g);
  return lists.map((list) => {
    list.sort((a, b) => groupStart[a] - groupStart[b] || a - b);
    let longest = 0;
    for (const g of list) longest = Math.max(longest, groupEnd[g] - groupStart[g]);
    return { list: Uint32Array.from(list), starts: Float64Array.from(list, (g) => groupStart[g]), longest };
  });
}
