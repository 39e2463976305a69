// Draws plots from the table next to them, instead of the server's drawing: with axes, and values at the pointer.
(() => {
  "use strict";
  const drawn = new Map();
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  function read(figure) {
    const columns = figure.dataset.columns.split(" ").map(Number);
    const data = [[], ...columns.map(() => [])];
    for (const row of document.getElementById(figure.dataset.table).tBodies[0].rows) {
      data[0].push(new Date(row.querySelector("time").dateTime) / 1000);
      columns.forEach((c, i) => {
        const value = row.cells[c].dataset.v;
        data[i + 1].push(value === undefined ? null : Number(value));
      });
    }
    return data;
  }

  // lone are the positions of values without neighbours, which no line shows.
  const lone = (u, i) => {
    const v = u.data[i], at = [];
    v.forEach((y, k) => { if (y != null && v[k - 1] == null && v[k + 1] == null) at.push(k); });
    return at;
  };

  const units = {
    ms: (v) => v >= 60000 ? +(v / 60000).toFixed(1) + " min" : v >= 1000 ? +(v / 1000).toFixed(1) + " s" : +v.toFixed(1) + " ms",
    usd: (v) => money(v / 1e9),
    calls: (v) => v.toLocaleString("en-US"),
  };
  // money formats US dollars like the server (usd in text.go), and large amounts without cents.
  function money(v) {
    if (!v) return "$0";
    const size = Math.floor(Math.log10(Math.abs(v)) + 1e-9), least = size >= 2 ? 0 : 2;
    const most = size >= 0 ? least : Math.min(9, 2 - size);
    return "$" + v.toLocaleString("en-US", { minimumFractionDigits: least, maximumFractionDigits: most });
  }
  // steps are the distances between lines of an axis: 1, 2 and 5 times a power of ten.
  const steps = Array.from({ length: 16 }, (_, n) => [1, 2, 5].map((v) => v * 10 ** n)).flat();

  function draw(figure) {
    drawn.get(figure)?.destroy();
    const table = document.getElementById(figure.dataset.table), data = read(figure), unit = units[figure.dataset.unit];
    const colors = figure.dataset.colors.split(" "), local = document.documentElement.dataset.zone === "local";
    const lines = figure.dataset.columns.split(" ").map((c, i) => ({
      label: table.tHead.rows[0].cells[c].textContent,
      stroke: color(colors[i]), width: 2, dash: { bad: [6, 3], warn: [2, 3], soft: [5, 3] }[colors[i]],
      points: { show: false, filter: lone, size: 5, fill: color(colors[i]) },
      value: (_, v) => v == null ? "–" : unit(v),
    }));
    const axis = { stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 } };
    let box = figure.querySelector("[data-own]");
    if (!box) {
      box = document.createElement("div");
      box.dataset.own = "";
      box.setAttribute("aria-hidden", "true"); // the table has the same data
      figure.append(box);
      new ResizeObserver(() => drawn.get(figure)?.setSize({ width: box.clientWidth, height: 124 })).observe(box);
    }
    figure.dataset.drawn = "";
    drawn.set(figure, new uPlot({
      width: box.clientWidth, height: 124,
      tzDate: (s) => local ? new Date(s * 1000) : uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
      cursor: { drag: { setScale: false, x: false, y: false } },
      scales: { y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : figure.dataset.unit === "usd" ? 1e7 : 1] } },
      axes: [
        { ...axis, size: 32, values: "{HH}:{mm}", space: 48 },
        { ...axis, size: (_, vs) => 22 + 7 * Math.max(...(vs ?? [""]).map((v) => v.length)), space: 28, incrs: figure.dataset.unit === "ms" ? undefined : steps, values: (_, vs) => vs.map(unit) },
      ],
      series: [{ label: "Time", value: local ? "{HH}:{mm}" : "{HH}:{mm} UTC" }, ...lines],
    }, data, box));
  }
  const all = () => document.querySelectorAll("figure[data-table]");
  all().forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all().forEach(draw));
  document.addEventListener("gem:changed", (e) => {
    for (const f of e.target.querySelectorAll("figure[data-table]")) drawn.has(f) ? drawn.get(f).setData(read(f)) : draw(f);
  });
})();
