// The scripts of all pages. Without them the pages work in the same way, except for live changes.
(() => {
  "use strict";
  const root = document.documentElement;
  const $ = (selector, from = document) => [...from.querySelectorAll(selector)];

  // Times stay relative, and local if the user chose that; times of the class clock stay times of day.
  const spans = [[86400e3 * 2, 86400e3, "d"], [3600e3, 3600e3, "h"], [60e3, 60e3, "min"], [0, 1e3, "s"]];
  function span(ms, rounded) {
    const [, unit, name] = spans.find(([from]) => ms >= from);
    return rounded(ms / unit) + " " + name;
  }
  function tick() {
    const local = root.dataset.zone === "local", now = Date.now();
    for (const t of $("time[datetime]")) {
      const at = new Date(t.dateTime), ago = now - at;
      let text = ago < 0 ? "in " + span(-ago, Math.round) : span(ago, Math.floor) + " ago";
      if (t.className === "clock") text = local ? at.toTimeString().slice(0, 5) : at.toISOString().slice(11, 16);
      if (t.textContent !== text) t.textContent = text;
      if (local && !t.dataset.local) t.dataset.local = t.title = at.toLocaleString();
    }
  }
  setInterval(() => document.hidden || tick(), 1000);

  // Prepares content from the server: a whole page, or a new part of it. A form that arrives later has no id yet.
  function ready(from) {
    tick();
    for (const b of $("[data-copy][hidden], [data-all][hidden]", from)) b.hidden = false;
    for (const form of $("input[name=form][value='']", from)) {
      form.value = [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
    }
  }
  document.addEventListener("gem:changed", (e) => ready(e.target));
  ready(document);

  // The open page.
  for (const a of $("header nav a")) {
    const here = location.pathname.replace(/\/$/, ""), there = new URL(a.href).pathname.replace(/\/$/, "");
    if (here === there || (there !== document.body.dataset.base && here.startsWith(there + "/"))) a.setAttribute("aria-current", "page");
  }

  // navigator.clipboard exists only on HTTPS and loopback.
  async function copy(button) {
    let done = false;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      done = true;
    } catch {
      const area = document.createElement("textarea");
      area.value = button.dataset.copy;
      area.className = "hidden";
      button.after(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    const label = button.textContent;
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  }

  document.addEventListener("click", (e) => {
    const button = e.target.closest("[data-copy]");
    if (button) {
      copy(button);
      return;
    }
    // A click on a row opens it, unless it hits something inside the row, or selects text.
    const row = e.target.closest("tr[data-href]");
    if (!row || e.target.closest("a, button, input, label, select, textarea, summary, td.mark") || String(getSelection())) return;
    if (e.ctrlKey || e.metaKey) window.open(row.dataset.href, "_blank", "noopener");
    else if (e.button === 0 && !e.shiftKey && !e.altKey) location.href = row.dataset.href;
  });
  document.addEventListener("change", (e) => {
    const box = e.target;
    if (box.matches("[data-all]")) for (const b of $("tbody input[type=checkbox]", box.closest("table"))) b.checked = box.checked;
    if (box.matches("input[type=checkbox]")) box.closest("tr")?.classList.toggle("chosen", box.checked);
  });

  // Keys. They can be switched off, since speech input presses them by accident.
  const help = document.getElementById("help"), off = "gem_keys_off";
  const stored = (value) => {
    try {
      if (value === undefined) return localStorage.getItem(off);
      value ? localStorage.setItem(off, "1") : localStorage.removeItem(off);
    } catch { /* the browser stores nothing */ }
    return null;
  };
  const keys = document.getElementById("keys"), opener = document.getElementById("keyboard");
  keys.checked = !stored();
  keys.addEventListener("change", () => stored(!keys.checked));
  opener.hidden = false;
  opener.addEventListener("click", () => help.showModal());

  // The focused row is the selected one: its first link has the focus.
  function move(by) {
    const links = $("main tbody tr").filter((row) => row.offsetParent).map((row) => row.querySelector("a[href]")).filter(Boolean);
    if (!links.length) return;
    const row = document.activeElement?.closest("main tbody tr");
    let at = links.findIndex((a) => a.closest("tr") === row);
    at = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1);
    links[at].focus();
    links[at].closest("tr").scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", (e) => {
    const types = e.target.closest?.("input:not([type=checkbox]), select, textarea, [contenteditable]");
    if (e.key === "Escape" && types && types.id === "search") {
      types.blur();
      return;
    }
    if (types || e.ctrlKey || e.metaKey || e.altKey || !keys.checked || help.open) return;
    const row = document.activeElement?.closest("main tbody tr");
    switch (e.key) {
      case "/": document.getElementById("search").focus(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "x": row?.querySelector("input[type=checkbox]")?.click(); break;
      case "?": help.showModal(); break;
      default: return;
    }
    e.preventDefault();
  });
})();
