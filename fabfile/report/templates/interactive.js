// Draws the page's charts with uPlot: along steps, time or tokens, smoothed, zoomed (drag; double click ends it), on a
// logarithmic scale. On paper they are as on the screen, in the colours of a light page.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const KEY = "trainyard-report";
  const state = { x: page.x, smooth: 0, log: false };
  try { Object.assign(state, JSON.parse(sessionStorage.getItem(KEY) || "{}")); } catch { /* a page from a file may have no storage */ }
  const plots = [];
  const PAPER = 680;  // pixels of the text's width on paper, which A4 and Letter have
  let paper = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const UNITS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];

  function short(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && size < 1e-3) return value.toExponential(1);
    for (const [unit, name] of UNITS) if (size >= unit * (unit === 1e3 ? 10 : 1)) return trim((value / unit).toFixed(2)) + " " + name;
    return trim(value.toFixed(size >= 100 ? 0 : size >= 1 ? 3 : 4));
  }
  const trim = (text) => text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;

  function clock(seconds) {
    const total = Math.round(seconds), hours = Math.floor(total / 3600), minutes = Math.floor(total / 60) % 60;
    const two = (number) => String(number).padStart(2, "0");
    return hours ? hours + ":" + two(minutes) + ":" + two(total % 60) : minutes + ":" + two(total % 60);
  }

  // A step of a run in the unit that is shown, between the points that are known.
  function along(run, step) {
    if (state.x === "step") return step;
    const known = page.runs[run], values = known[state.x];
    let low = 0, high = known.step.length - 1;
    if (high < 0 || values.length === 0) return null;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (known.step[middle] <= step) low = middle; else high = middle;
    }
    const width = known.step[high] - known.step[low];
    const share = width ? (step - known.step[low]) / width : 0;
    return values[low] + (values[high] - values[low]) * share;
  }

  function smoothed(values) {
    if (!state.smooth) return values;
    let mean = 0, weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = state.smooth * mean + (1 - state.smooth) * value;
      weight = state.smooth * weight + (1 - state.smooth);
      return mean / weight;
    });
  }

  function table(chart, line) {
    const points = line.points || page.runs[line.run].step.map((step, index) => [step, line.y[index]]);
    const pairs = points
      .map(([x, y]) => [chart.along === "time" ? x : along(line.run, x), y])
      .filter(([x, y]) => x !== null && y !== null && (!state.log || y > 0))
      .sort((one, other) => one[0] - other[0]);
    const ys = pairs.map(([, y]) => y);
    return [pairs.map(([x]) => x), line.dots ? ys : smoothed(ys)];
  }

  // The legend has the value at the cursor, and the last one while there is no cursor.
  function series(line, values) {
    const stroke = colour(line.colour), last = values[values.length - 1];
    const thin = line.colour === "quiet";
    return {
      label: line.name || "value", stroke, width: thin ? 1 : 1.75, spanGaps: true,
      points: { show: line.dots, size: 6, fill: stroke }, paths: line.dots ? undefined : uPlot.paths.linear(),
      value: (_, value, __, at) => short(at === null ? last : value),
    };
  }

  function marks(chart) {
    return (u) => {
      const box = u.bbox, draw = u.ctx;
      draw.save();
      for (const mark of chart.marks) {
        const at = along(mark.run, mark.x);
        if (at === null || at < u.scales.x.min || at > u.scales.x.max) continue;
        const x = Math.round(u.valToPos(at, "x", true));
        draw.strokeStyle = colour(mark.kind === "restart" ? "ink" : "soft");
        draw.lineWidth = devicePixelRatio;
        draw.setLineDash(mark.kind === "restart" ? [5 * devicePixelRatio, 5 * devicePixelRatio] : []);
        draw.beginPath();
        draw.moveTo(x, mark.kind === "restart" ? box.top : box.top + box.height - 7 * devicePixelRatio);
        draw.lineTo(x, box.top + box.height);
        draw.stroke();
      }
      draw.restore();
    };
  }

  function options(chart, tables, width) {
    const time = chart.along === "time" || state.x === "time";
    const format = time ? clock : short;
    const axis = { stroke: colour("soft"), grid: { stroke: colour("faint"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const low = (min, max) => chart.fromZero && !state.log ? [0, max * 1.05 || 1] : uPlot.rangeNum(min, max, 0.08, true);
    return {
      width, height: chart.height,
      scales: { x: { time: false }, y: state.log ? { distr: 3 } : { range: (_, min, max) => min === null ? [0, 1] : low(min, max) } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(format), space: 70, size: 30 },
        { ...axis, values: (_, ticks) => ticks.map((tick) => tick === null ? "" : short(tick)), size: 58 },
      ],
      series: [{ label: chart.along === "time" ? "time" : state.x, value: (_, value) => value === null ? "–" : format(value) }, ...chart.lines.map((line, index) => series(line, tables[index][1]))],
      cursor: { drag: { x: true, y: false }, sync: chart.along === "time" ? undefined : { key: "steps" }, points: { size: 7 } },
      hooks: { draw: [marks(chart)] },
    };
  }

  function build() {
    for (const plot of plots.splice(0)) plot.destroy();
    for (const [index, chart] of page.charts.entries()) {
      const figure = document.querySelector('[data-chart="' + index + '"]');
      if (!figure) continue;
      let place = figure.querySelector(".live");
      if (!place) {
        place = document.createElement("div");
        place.className = "live";
        figure.querySelector(".outline").after(place);
        figure.classList.add("enhanced");
      }
      const tables = chart.lines.map((line) => table(chart, line)).map((each) => each[0].length ? each : [[0], [null]]);
      const width = !paper ? place.clientWidth : figure.closest(".row") ? PAPER * 0.47 : PAPER;
      const plot = new uPlot(options(chart, tables, width), uPlot.join(tables), place);
      if (chart.begin && !state.log) {
        const xs = plot.data[0], begins = chart.lines.map((line) => along(line.run, chart.begin));
        plot.setScale("x", { min: Math.min(...begins), max: xs[xs.length - 1] });
      }
      plots.push(plot);
    }
  }

  function changed() {
    try { sessionStorage.setItem(KEY, JSON.stringify(state)); } catch { /* as above */ }
    build();
  }

  function labelled(text, input) {
    const label = document.createElement("label");
    label.append(input, " ", text);
    return label;
  }

  function controls() {
    const bar = document.createElement("div");
    bar.className = "controls";
    for (const [value, text] of page.units) {
      const input = Object.assign(document.createElement("input"), { type: "radio", name: "x", checked: state.x === value });
      input.addEventListener("change", () => { state.x = value; changed(); });
      bar.append(labelled(text, input));
    }
    const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth });
    slider.addEventListener("input", () => { state.smooth = Number(slider.value); changed(); });
    const log = Object.assign(document.createElement("input"), { type: "checkbox", checked: state.log });
    log.addEventListener("change", () => { state.log = log.checked; changed(); });
    bar.append(labelled("smoothing", slider), labelled("log scale", log));
    const hint = document.createElement("span");
    hint.textContent = "drag to zoom, double click to leave it";
    bar.append(hint);
    document.querySelector("[data-chart]").before(bar);
  }

  if (!page.units.some(([value]) => value === state.x)) state.x = page.x;
  controls();
  build();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
  for (const [event, begins] of [["beforeprint", true], ["afterprint", false]])
    addEventListener(event, () => { paper = begins; document.documentElement.classList.toggle("paper", paper); build(); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; build(); } });
})();
