// Times, durations and numbers in words. All times are nanoseconds from the origin of the run.
/** A duration in the unit that suits its size. */
function span(ns) {
  const size = Math.abs(ns);
  const [unit, name] = size >= 2 * 86400e9 ? [86400e9, "d"] : size >= 2 * 3600e9 ? [3600e9, "h"] : size >= 300e9 ? [60e9, "min"] : size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = unit === 1 ? 0 : size / unit >= 100 ? 1 : size / unit >= 10 ? 2 : 3;
  return `${(ns / unit).toFixed(digits)} ${name}`;
}

/** The same in three digits, for axes. */
function brief(ns) {
  const [number, unit] = span(ns).split(" ");
  return `${+(+number).toPrecision(3)} ${unit}`;
}

/** A time of the run as date and clock, to the nanosecond. */
function absolute(run, ns) {
  const total = BigInt(run.origin_ns) + BigInt(Math.round(ns));
  const second = total / 1000000000n - (total < 0n && total % 1000000000n !== 0n ? 1n : 0n);
  const rest = total - second * 1000000000n;
  const date = new Date(Number(second) * 1000);
  const fraction = String(rest).padStart(9, "0");
  if (Math.abs(Number(second)) < 3e7) return `${second}.${fraction} s`; // a recording that counts from zero
  return `${date.toISOString().slice(0, 19).replace("T", " ")}.${fraction}Z`;
}

const DAY = 86400e9;

/** Months between ticks of a range that is too long for weeks: of the calendar, as no span of days ends with a month. */
function tickMonths(rough) {
  return [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200].find((months) => months * 30.4 * DAY >= rough) || 2400;
}

/** The label of a tick, with as many digits as the distance between ticks needs. */
function tickLabel(run, ns, step) {
  const total = BigInt(run.origin_ns) + BigInt(Math.round(ns));
  const digits = Math.min(9, Math.max(0, Math.ceil(9 - Math.log10(step) - 1e-9)));
  const second = Number(total / 1000000000n);
  const rest = String(total % 1000000000n).replace("-", "").padStart(9, "0").slice(0, digits);
  if (Math.abs(second) < 3e7) return digits ? `${second}.${rest}` : `${second}`;
  const text = new Date(second * 1000).toISOString(), clock = text.slice(11, 19);
  if (step >= 365 * DAY) return text.slice(0, text.indexOf("-", 1));
  if (step >= 28 * DAY) return text.slice(0, text.indexOf("-", 1) + 3);
  if (step >= DAY || (step >= 3600e9 && clock === "00:00:00")) return text.slice(0, text.indexOf("T"));
  return digits ? `${clock}.${rest}` : clock;
}

/** Round distances between ticks: 1, 2 or 5 of a power of ten; whole minutes and hours above. */
function tickStep(range, count) {
  const rough = range / Math.max(count, 1);
  for (const big of [60e9, 120e9, 300e9, 600e9, 1800e9, 3600e9, 2 * 3600e9, 6 * 3600e9, 86400e9, 7 * 86400e9]) {
    if (rough > 30e9 && rough <= big) return big;
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((f) => f * power >= rough) || 10;
  return Math.max(1, factor * power);
}

function whole(n) { return n.toLocaleString("en-US"); }

/** One message, two messages. */
function counted(n, noun) { return `${whole(n)} ${noun}${n === 1 ? "" : "s"}`; }

/** Names cut so that they fit, by name: in the middle; where that makes two alike, around the place where they differ. */
function fittedApart(g, names, room) {
  const cut = new Map(names.map((name) => [name, fitted(g, name, room)]));
  const same = new Map();
  for (const [name, text] of cut) same.set(text, [...(same.get(text) || []), name]);
  for (const alike of same.values()) {
    if (alike.length < 2) continue;
    for (const name of alike) {
      let at = 0;
      while (at < name.length - 1 && alike.every((other) => other[at] === name[at])) at++;
      const head = `${at > 1 ? "…" : ""}${name.slice(Math.max(at - 1, 0), at + 1)}…`;
      let kept = name.length - at - 1;
      while (kept > 1 && g.measureText(head + name.slice(name.length - kept)).width > room) kept--;
      cut.set(name, head + name.slice(name.length - kept));
    }
  }
  return cut;
}

/** Cut a text in the middle so that it fits: names of topics differ at their ends. */
function fitted(g, text, room) {
  if (g.measureText(text).width <= room) return text;
  let kept = text.length - 1;
  const cut = () => `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
  while (kept > 1 && g.measureText(cut()).width > room) kept--;
  return cut();
}
