// Keeps a page up to date: one stream sends the changed parts, which replace the old ones without disturbing the user.
(() => {
  "use strict";
  const base = document.body.dataset.base, away = document.getElementById("away"), said = document.getElementById("said"), pause = document.getElementById("pause");
  const awayText = away.textContent;
  let stream = null, again = 0, paused = false, over = false;

  function page() {
    const url = new URL(location.href);
    url.searchParams.delete("done");
    return url.pathname.slice(base.length) + url.search;
  }
  function show(text) {
    if (text && away.textContent !== text) away.textContent = text;
    away.hidden = !text;
  }
  function open() {
    clearTimeout(again);
    if (stream || paused || over || document.hidden) return;
    stream = new EventSource(base + "/live?watch=" + encodeURIComponent(page()));
    stream.onopen = () => show("");
    stream.onmessage = (e) => {
      const cut = e.data.indexOf("\n"), part = document.getElementById(e.data.slice(0, cut));
      if (part) change(part, e.data.slice(cut + 1));
    };
    stream.addEventListener("away", (e) => show(e.data));
    stream.addEventListener("back", () => show(""));
    stream.addEventListener("renew", () => {
      close();
      open();
    });
    stream.addEventListener("over", (e) => {
      over = true;
      close();
      show(e.data);
    });
    stream.onerror = () => {
      show(awayText);
      if (stream.readyState !== EventSource.CLOSED) return; // the browser retries on its own
      close();
      again = setTimeout(open, 5000);
      ask();
    };
  }
  function close() {
    clearTimeout(again);
    stream?.close();
    stream = null;
  }
  // A stream does not show why it was rejected; the page does.
  async function ask() {
    try {
      const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" });
      if (answer.type !== "opaqueredirect" && answer.status !== 401 && answer.status !== 403) return;
      over = true;
      show("You are no longer signed in. Load this page again.");
    } catch { /* unreachable */ }
  }

  pause.hidden = false;
  document.getElementById("reload").hidden = true;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume updates" : "Pause updates";
    paused ? close() : open();
  });
  // A hidden tab requests nothing; a short look at another tab changes nothing.
  let hide = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hide);
    if (document.hidden) hide = setTimeout(close, 5000);
    else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (e) => e.persisted && open());
  open();

  // change gives a part new content.
  function change(part, html) {
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    const focus = document.activeElement;
    patch(part, fresh.content);
    if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
    part.dispatchEvent(new CustomEvent("gem:changed", { bubbles: true }));
    const title = part.querySelector("[data-title]")?.dataset.title;
    if (title) document.title = title + " · GEM";
    const open = part.querySelector("[data-open]")?.dataset.open, asking = document.getElementById("asking");
    if (open !== undefined && asking) {
      asking.firstChild.data = open;
      asking.hidden = open === "0";
    }
    const say = part.querySelector("[data-say]")?.dataset.say;
    if (say !== undefined) announce(say);
  }

  // patch replaces the children of an element by those of another. It keeps children with the same id or data-key, and
  // children with the same name in the same place. It leaves elements that scripts added (data-own).
  // A row or a question with a selection or the focus stays in place until that ends, even if the list has changed.
  const mine = (node) => node.nodeType === 1 && ("own" in node.dataset || (["TR", "LI"].includes(node.nodeName) && (node.contains(document.activeElement) || node.querySelector("input:checked"))));
  const key = (node) => node.nodeType === 1 ? node.id || node.dataset.key || "" : "";
  function patch(old, fresh) {
    const wanted = new Set([...fresh.childNodes].map(key).filter(Boolean));
    const known = new Map();
    for (const node of old.childNodes) if (key(node)) known.set(key(node), node);
    let at = old.firstChild;
    const skip = () => {
      while (at && ((at.nodeType === 1 && "own" in at.dataset) || (key(at) && !wanted.has(key(at))))) {
        const next = at.nextSibling;
        if (!mine(at)) at.remove();
        at = next;
      }
    };
    for (const node of [...fresh.childNodes]) {
      skip();
      const k = key(node);
      const same = k ? known.get(k) : at && !key(at) && at.nodeName === node.nodeName ? at : null;
      if (!same || same.nodeName !== node.nodeName) {
        old.insertBefore(node, at);
        continue;
      }
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      become(same, node);
    }
    while (at) {
      const next = at.nextSibling;
      if (!mine(at)) at.remove();
      at = next;
    }
  }
  // The user's state: what is open, typed, checked and selected, and what scripts have set.
  const theirs = new Set(["open", "value", "checked", "selected", "hidden", "data-drawn", "data-local"]);
  function become(old, fresh) {
    if (old.nodeType !== 1) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.nodeName === "TIME" && old.dateTime === fresh.dateTime) return;
    if (old.nodeName === "TIME") delete old.dataset.local;
    const chosen = old.classList.contains("chosen");
    for (const { name, value } of fresh.attributes) if (!theirs.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!theirs.has(name) && !fresh.hasAttribute(name) && !(name === "class" && chosen)) old.removeAttribute(name);
    if (chosen) old.classList.add("chosen");
    if (old.nodeName !== "TEXTAREA") patch(old, fresh);
  }

  // Numbers are read out at most every 10 s.
  let last = 0, next = 0;
  function announce(text) {
    clearTimeout(next);
    if (text === said.textContent) return;
    next = setTimeout(() => {
      last = Date.now();
      said.textContent = text;
    }, Math.max(0, last + 10000 - Date.now()));
  }
})();
