// What the page does beyond its tables and pictures: filter, sort, draw and download what is in it. Nothing is fetched.
// Without this script, or with a browser that lacks DecompressionStream, all tables and pictures stand as they are.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const section = byId("explore-part");
  const FIRST_ROWS = 25, MORE_ROWS = 500, MOST_DRAWN = 8, DASH = "-";
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  const SIZES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

  const digits = (value) => value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
  // As wording.duration and wording.size word them in the page's other tables.
  const duration = (ns) => {
    if (ns === null || ns === undefined) return DASH;
    const unit = UNITS.find(([scale]) => ns >= scale * 0.9995);
    return unit ? `${digits(ns / unit[0])} ${unit[1]}` : `${Math.round(ns)} ns`;
  };
  const bytes = (count) => {
    const unit = SIZES.find(([scale]) => count >= scale);
    return unit ? `${(count / unit[0]).toFixed(1)} ${unit[1]}` : count ? `${count} B` : DASH;
  };
  const ratio = (thousandths) => (thousandths === null ? DASH : digits(thousandths / 1000));

  // Scrolling regions can be reached by keyboard where they scroll, and are no stop where they do not.
  const regions = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  document.querySelectorAll(".scroll").forEach((each) => regions.observe(each));
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));

  if (!section || !("DecompressionStream" in window)) return;

  const unpacked = async (id) => {
    const text = byId(id).textContent;
    const packed = "fromBase64" in Uint8Array ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  };

  // How a value of a column of each kind is shown; the columns are those of `explored_columns` in html.py.
  const SHOWN = {
    text: (name) => data.names[name],
    duration: (ns) => duration(ns || null),
    ratio,
    interval: (low, n) => (low === null ? DASH : `${ratio(low)} to ${ratio(data.rows.high[n])}`),
    bytes,
  };
  const FILTERS = ["model", "device", "verdict"];

  const element = (name, attributes = {}, text = "") => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };

  // ---- state, in the fragment of the address: #model=…&device=…&verdict=…&text=…&sort=-median
  const state = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const keep = (changes) => {
    const now = state();
    for (const [key, value] of Object.entries(changes)) value ? now.set(key, value) : now.delete(key);
    history.replaceState(null, "", `#${now.toString() || "explore"}`);
    show();
  };

  let data, shown = FIRST_ROWS, plot, zoomed;

  const chosen = () => {
    const wanted = state();
    const text = (wanted.get("text") || "").toLowerCase();
    const texts = data.columns.filter(([, , kind]) => kind === "text").map(([key]) => key);
    const places = data.rows.median.map((_, n) => n).filter((n) =>
      FILTERS.every((name) => !wanted.get(name) || data.names[data.rows[name][n]] === wanted.get(name)) &&
      (!text || texts.some((name) => data.names[data.rows[name][n]].toLowerCase().includes(text))));
    const sort = wanted.get("sort") || "";
    const key = sort.replace(/^-/, "");
    if (!data.columns.some(([name]) => name === key)) return places;
    const sign = sort.startsWith("-") ? -1 : 1;
    if (texts.includes(key)) {
      const order = new Intl.Collator("en", { numeric: true });
      return places.sort((a, b) => sign * order.compare(data.names[data.rows[key][a]], data.names[data.rows[key][b]]));
    }
    const value = (n) => data.rows[key][n] ?? Infinity;
    return places.sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
  };

  const head = () => {
    const row = element("tr");
    const sort = state().get("sort") || "";
    for (const [key, title] of data.columns) {
      const down = sort === key, up = sort === `-${key}`;
      const cell = element("th", { scope: "col", "aria-sort": down ? "ascending" : up ? "descending" : "none" });
      const button = element("button", { type: "button" }, title + (down ? " ↓" : up ? " ↑" : ""));
      button.addEventListener("click", () => {
        keep({ sort: down ? `-${key}` : up ? "" : key });
        byId("explore-head").querySelectorAll("button")[data.columns.findIndex(([name]) => name === key)].focus();
      });
      cell.append(button);
      row.append(cell);
    }
    byId("explore-head").replaceChildren(row);
  };

  const body = (places) => {
    const rows = document.createDocumentFragment();
    for (const n of places.slice(0, shown)) {
      const row = element("tr");
      data.columns.forEach(([key, , kind], place) => {
        const text = SHOWN[kind](data.rows[key][n], n);
        row.append(place ? element("td", kind === "text" ? {} : { class: "number" }, text) : element("th", { scope: "row" }, text));
      });
      rows.append(row);
    }
    byId("explore-body").replaceChildren(rows);
    byId("explore-count").textContent = `${places.length} of ${data.rows.median.length} rows` +
      (places.length > shown ? `, the first ${shown} shown` : "");
    byId("explore-more").hidden = places.length <= shown;
  };

  // ---- distributions of the rows that are shown
  const svg = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  };
  const nameOf = (n) => ["device", "model", "variant", "run"].map((key) => data.names[data.rows[key][n]]).join(" ");

  const distributions = (places) => {
    const drawn = places.filter((n) => data.rows.quantiles[n].length).slice(0, MOST_DRAWN);
    const holder = byId("explore-distribution");
    holder.replaceChildren();
    if (!drawn.length) return;
    const values = drawn.flatMap((n) => data.rows.quantiles[n]);
    const low = Math.max(1, Math.min(...values)), high = Math.max(low * 1.05, ...values);
    const x = (value) => (46 + 500 * Math.log(Math.max(value, low) / low) / Math.log(high / low)).toFixed(1);
    const y = (share) => (192 - 182 * share).toFixed(1);
    const picture = svg("svg", { role: "img", width: 560, height: 220, viewBox: "0 0 560 220",
      "aria-label": `distribution of latencies: ${drawn.map((n) => `${nameOf(n)} median ${duration(data.rows.median[n])}`).join("; ")}` });
    for (const share of [0, 0.5, 1]) {
      picture.append(svg("line", { class: "zero", x1: 46, x2: 546, y1: y(share), y2: y(share) }),
        svg("text", { class: "tick", x: 40, y: +y(share) + 4, "text-anchor": "end" }, `${share * 100} %`));
    }
    [[low, "start"], [Math.sqrt(low * high), "middle"], [high, "end"]].forEach(([value, anchor]) =>
      picture.append(svg("text", { class: "tick", x: x(value), y: 212, "text-anchor": anchor }, duration(value))));
    const keys = element("ul", { class: "keys" });
    drawn.forEach((n, number) => {
      const curve = data.rows.quantiles[n], step = 1 / curve.length;
      const points = curve.flatMap((value, k) => [`${x(value)},${y(k * step)}`, `${x(value)},${y((k + 1) * step)}`]);
      picture.append(svg("polyline", { class: `line s${number}`, points: points.join(" ") }));
      const sample = svg("svg", { "aria-hidden": "true", width: 26, height: 8 });
      sample.append(svg("line", { class: `line s${number}`, x1: 0, x2: 26, y1: 4, y2: 4 }));
      const key = element("li");
      key.append(sample, nameOf(n));
      keys.append(key);
    });
    holder.append(element("figcaption", {}, `Share of inferences (up) that take at most so long (logarithmic), of ${drawn.length} of ${places.length} rows`), picture, keys);
  };

  // ---- the timeline: medians of runs with temperature and frequency, zoomed by dragging or by its buttons
  const timeline = (places) => {
    const holder = byId("explore-timeline");
    if (plot) plot.destroy();
    plot = undefined;
    const few = places.length <= MOST_DRAWN;
    const group = few ? new Map(places.map((n, number) => [n, number])) : groups(places);
    const names = few ? places.map(nameOf) : [...new Set(places.map((n) => data.names[data.rows.model[n]]))].slice(0, MOST_DRAWN);
    const order = data.runs.row.map((_, k) => k).filter((k) => group.has(data.runs.row[k]))
      .sort((a, b) => data.runs.at[a] - data.runs.at[b]);
    byId("timeline-part").hidden = !order.length;
    if (!order.length) return;
    const start = Date.parse(data.started) / 1000 || 0;
    const columns = [order.map((k) => start + data.runs.at[k] / 1000), ...names.map(() => new Array(order.length).fill(null))];
    order.forEach((k, place) => {
      const row = data.runs.row[k];
      columns[1 + group.get(row)][place] = few ? data.runs.median[k] / 1e6 : data.runs.median[k] / (data.rows.median[row] || 1);
    });
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--ink"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
    const strokes = names.map((_, number) => color(`--s${number}`));
    const series = [{}, ...names.map((label, number) => ({ label, stroke: strokes[number], width: few ? 1.5 : 0,
      spanGaps: true, paths: few ? undefined : () => null, points: { show: true, size: few ? 5 : 3, fill: strokes[number] } }))];
    const day = "\n{YYYY}-{MM}-{DD}";
    const instants = [[86400, "{YYYY}-{MM}-{DD}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"], [0.001, "{HH}:{mm}:{ss}.{fff}"]]
      .map(([step, text]) => [step, text, ...new Array(6).fill(null).map((_, n) => (step < 86400 && (n === 0 || n === 2) ? day : null)), 1]);
    const axes = [{ ...axis, values: instants, space: 110 }, { ...axis, label: few ? "ms" : "times the row's median", size: 60 }];
    const devices = new Set(order.map((k) => data.rows.device[data.runs.row[k]]));
    const said = ["celsius", "mhz"].some((key) => order.some((k) => data.runs[key][k] !== null));
    byId("timeline-note").textContent = !said ? "No temperature or frequency was reported." : devices.size > 1
      ? "Choose one device to see its temperature and frequency." : "Dashed: temperature and frequency before each run.";
    for (const [key, label, scale, factor] of [["celsius", "°C", "c", 0.1], ["mhz", "MHz", "mhz", 1]]) {
      if (devices.size > 1) break; // one line through the temperatures of several devices would be of none
      const values = order.map((k) => (data.runs[key][k] === null ? null : data.runs[key][k] * factor));
      if (values.every((value) => value === null)) continue;
      columns.push(values);
      series.push({ label, scale, stroke: color(scale === "c" ? "--bad" : "--soft"), dash: [4, 3], spanGaps: true, points: { show: false } });
      axes.push({ ...axis, scale, label, side: 1, size: 55, grid: { show: false } });
    }
    const width = () => Math.max(280, byId("timeline-part").clientWidth);
    plot = new uPlot({ width: width(), height: 320, series, axes, legend: { live: false }, cursor: { points: { show: false } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") }, columns, holder);
    holder.setAttribute("aria-label", `${order.length} runs over ${duration((data.runs.at[order.at(-1)] - data.runs.at[order[0]]) * 1e6)}: ${names.join("; ")}`);
    zoomed = () => plot.setSize({ width: width(), height: 320 });
  };
  const groups = (places) => {
    const models = [...new Set(places.map((n) => data.rows.model[n]))].slice(0, MOST_DRAWN);
    return new Map(places.filter((n) => models.includes(data.rows.model[n])).map((n) => [n, models.indexOf(data.rows.model[n])]));
  };
  const zoom = (factor) => {
    if (!plot) return;
    const { min, max } = plot.scales.x;
    const half = (max - min) / 2 * factor, middle = (min + max) / 2;
    plot.setScale("x", { min: middle - half, max: middle + half });
  };

  // ---- downloads: what is in the page, as CSV
  const quoted = (text) => {
    const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const save = (name, lines) => {
    const link = element("a", { download: name, href: URL.createObjectURL(new Blob([lines.join("\n"), "\n"], { type: "text/csv" })) });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const places = (k) => ["device", "model", "variant", "run"].map((key) => quoted(data.names[data.rows[key][data.runs.row[k]]])).join(",");
  const saveRuns = () => save("runs.csv", ["device,model,variant,run,round,started_ms,median_ns,celsius,mhz,thermal_status",
    ...data.runs.row.map((_, k) => [places(k), data.runs.round[k], data.runs.at[k], data.runs.median[k],
      data.runs.celsius[k] === null ? "" : data.runs.celsius[k] / 10, data.runs.mhz[k] ?? "", data.runs.thermal[k] ?? ""].join(","))]);
  const saveLatencies = async () => {
    const view = new DataView(await unpacked("raw-data"));
    let at = 0;
    save("latencies.csv", ["device,model,variant,run,round,latency_ns", ...data.runs.row.flatMap((_, k) =>
      Array.from({ length: data.runs.samples[k] }, () => `${places(k)},${data.runs.round[k]},${view.getUint32(4 * at++, true)}`))]);
  };

  const show = () => {
    const found = chosen(), wanted = state();
    for (const name of FILTERS) byId(`filter-${name}`).value = wanted.get(name) || "";
    if (document.activeElement !== byId("filter-text")) byId("filter-text").value = wanted.get("text") || "";
    head();
    body(found);
    inSight("explore-distribution", () => distributions(found));
    inSight("timeline-part", () => timeline(found));
  };
  // What is drawn once an element comes near the window; drawing it again replaces what still waits.
  const waiting = new Map();
  const inSight = (id, draw) => {
    waiting.set(byId(id), draw);
    nearby.unobserve(byId(id));
    nearby.observe(byId(id));
  };
  const nearby = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting || !waiting.has(target)) continue;
      const draw = waiting.get(target);
      waiting.delete(target);
      draw();
    }
  }, { rootMargin: "200px" });

  const begin = async () => {
    data = JSON.parse(new TextDecoder().decode(await unpacked("run-data")));
    for (const name of FILTERS) {
      const known = [...new Set(data.rows[name].map((place) => data.names[place]))];
      byId(`filter-${name}`).append(...known.map((text) => element("option", { value: text }, text)));
      byId(`filter-${name}`).addEventListener("change", (event) => keep({ [name]: event.target.value }));
    }
    byId("filter-text").addEventListener("input", (event) => keep({ text: event.target.value }));
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("explore-more").addEventListener("click", () => { shown += MORE_ROWS; show(); });
    byId("zoom-in").addEventListener("click", () => zoom(0.5));
    byId("zoom-out").addEventListener("click", () => zoom(2));
    byId("save-runs").addEventListener("click", saveRuns);
    byId("save-latencies").addEventListener("click", saveLatencies);
    byId("save-latencies").hidden = !data.raw;
    addEventListener("hashchange", () => { if (location.hash.includes("=")) show(); });
    addEventListener("resize", () => { if (plot) zoomed(); });
    show();
    section.dataset.ready = "yes";
    if (location.hash.includes("=")) section.scrollIntoView();
  };
  section.hidden = false;
  document.querySelectorAll("[data-explore]").forEach((each) => { each.hidden = false; });
  const unreadable = () => { section.hidden = true; };
  if (location.hash.includes("=")) begin().catch(unreadable);
  else inSight("explore-part", () => begin().catch(unreadable));
})();
