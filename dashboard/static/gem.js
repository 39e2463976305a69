// The scripts of all pages. Without them the pages show and do the same, but for what changes while one looks.
(() => {
  "use strict";
  const root = document.documentElement;

  // Times stay relative, and their titles are local where that is chosen.
  const spans = [[86400e3 * 2, 86400e3, "d"], [3600e3, 3600e3, "h"], [60e3, 60e3, "min"], [0, 1e3, "s"]];
  function span(ms) {
    const [, unit, name] = spans.find(([from]) => ms >= from);
    return Math.floor(ms / unit) + " " + name;
  }
  function tick() {
    for (const t of document.querySelectorAll("time[datetime]")) {
      const at = new Date(t.dateTime);
      const ago = Date.now() - at;
      t.textContent = ago < 0 ? "in " + span(-ago) : span(ago) + " ago";
      if (root.dataset.zone === "local") t.title = at.toLocaleString();
    }
  }
  setInterval(() => document.hidden || tick(), 1000);
  tick();

  // The page that is open.
  for (const a of document.querySelectorAll("header nav a")) {
    const here = location.pathname.replace(/\/$/, ""), there = new URL(a.href).pathname.replace(/\/$/, "");
    if (here === there || (there !== document.body.dataset.base && here.startsWith(there + "/"))) a.setAttribute("aria-current", "page");
  }
})();
