// The console without this script is complete; with it, pages keep themselves fresh, rows can be dragged, and keys work.
(() => {
  "use strict";

  const remembered = (name, fallback) => {
    try {
      return localStorage.getItem(`jobs.${name}`) ?? fallback;
    } catch {
      return fallback;
    }
  };
  const remember = (name, value) => {
    try {
      localStorage.setItem(`jobs.${name}`, value);
    } catch {
      // A browser that keeps nothing forgets the choice with the page.
    }
  };

  // -- live: ask for this page again, and replace what carries data-live ------------------------------------------------

  const bar = document.querySelector(".jc-bar[data-live-url]");
  const live = bar && {
    box: bar.querySelector(".jc-live"),
    state: bar.querySelector(".jc-live-state"),
    age: bar.querySelector(".jc-live-age"),
    every: bar.querySelector(".jc-live-every"),
    etag: bar.dataset.liveEtag,
    slower: 1,
    at: Date.now(),
    next: Date.now(),
    busy: false,
  };

  const seconds = () => Number(live.every.value);
  const isHandled = () =>
    document.querySelector('#result_list input[type="checkbox"]:checked, .jc-dragged, dialog[open]') !== null ||
    (document.activeElement !== null && document.activeElement.matches("input, textarea, select") && !live.box.contains(document.activeElement));

  const show = () => {
    const { state, age } = live;
    const isStale = live.slower > 1;
    bar.classList.toggle("jc-is-stale", isStale);
    const word = isStale ? state.dataset.stale : seconds() === 0 ? state.dataset.paused : state.dataset.fresh;
    if (state.textContent !== word) state.textContent = word;
    age.textContent = age.dataset.ago.replace("%s", Math.round((Date.now() - live.at) / 1000));
  };

  const replace = (page) => {
    for (const fresh of page.querySelectorAll("[data-live]")) {
      const old = document.querySelector(`[data-live="${CSS.escape(fresh.dataset.live)}"]`);
      if (old && old.innerHTML !== fresh.innerHTML) {
        const open = new Set([...old.querySelectorAll("details[open][id]")].map((each) => each.id));
        const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
        const typed = [...old.querySelectorAll("input[type=text][id], textarea[id]")].map((each) => [each.id, each.value]);
        old.replaceChildren(...document.importNode(fresh, true).childNodes);
        for (const id of open) document.getElementById(id)?.setAttribute("open", "");
        for (const [id, value] of typed) if (value && document.getElementById(id)) document.getElementById(id).value = value;
        if (focused) document.getElementById(focused)?.focus();
      }
    }
    // The admin's own script knows the boxes that it found at first.
    if (window.Actions) window.Actions(document.querySelectorAll("tr input.action-select"));
    document.dispatchEvent(new CustomEvent("jobs:fresh"));
  };

  const refresh = async () => {
    if (!live || live.busy) return;
    live.busy = true;
    try {
      const answer = await fetch(bar.dataset.liveUrl, {
        headers: { "X-Jobs-Live": "1", "If-None-Match": live.etag },
        cache: "no-store",
        credentials: "same-origin",
        redirect: "error", // a login page is not pasted into this one
      });
      if (!answer.ok && answer.status !== 304) throw new Error(String(answer.status));
      if (answer.status !== 304) {
        const text = await answer.text();
        if (isHandled()) return; // while somebody chooses, nothing moves under the hand
        live.etag = answer.headers.get("ETag") ?? "";
        replace(new DOMParser().parseFromString(text, "text/html"));
      }
      live.at = Date.now();
      live.slower = 1;
    } catch {
      live.slower = Math.min(live.slower * 2, 8);
    } finally {
      live.busy = false;
      live.next = Date.now() + Math.max(seconds(), 1) * 1000 * live.slower;
      show();
    }
  };

  if (live) {
    live.box.hidden = false;
    const chosen = remembered("live", bar.dataset.liveEvery);
    if ([...live.every.options].some((each) => each.value === chosen)) live.every.value = chosen;
    live.next += seconds() * 1000;
    live.every.addEventListener("change", () => {
      remember("live", live.every.value);
      live.next = Date.now() + seconds() * 1000;
      show();
    });
    setInterval(() => {
      if (document.hidden) return;
      show();
      if (seconds() > 0 && Date.now() >= live.next && !isHandled()) refresh();
    }, 1000);
    show();
  }

  // -- counts that the page asks for by itself ---------------------------------------------------------------------------

  const counts = document.querySelector("[data-counts-url]");
  const count = async () => {
    try {
      const answer = await fetch(counts.dataset.countsUrl, { credentials: "same-origin", redirect: "error" });
      if (!answer.ok) return;
      const found = await answer.json();
      for (const place of counts.querySelectorAll("[data-count]")) {
        const told = found[place.dataset.count];
        if (told !== undefined) place.textContent = told;
      }
    } catch {
      // The tabs are links without their numbers, too.
    }
  };
  if (counts) {
    count();
    document.addEventListener("jobs:fresh", count);
  }

  // -- filters: what is not chosen is not said in the address --------------------------------------------------------------

  document.addEventListener("submit", (event) => {
    for (const each of event.target.matches(".jc-filters") ? event.target.elements : []) if (each.matches("select")) each.disabled = each.value === "";
  });

  // On a phone the tabs stand in one line, and the chosen one may be beyond its end.
  for (const each of document.querySelectorAll(".jc-tabs [aria-current]")) {
    if (each.parentElement.scrollWidth > each.parentElement.clientWidth) each.parentElement.scrollLeft = each.offsetLeft - each.parentElement.offsetLeft;
  }

  // -- copy buttons --------------------------------------------------------------------------------------------------------

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    if (source && navigator.clipboard) navigator.clipboard.writeText(source.textContent);
  });
  if (navigator.clipboard) for (const each of document.querySelectorAll("[data-copy]")) each.hidden = false;

  // -- the queue: drag a row, or move the focused one with Alt and the arrows ------------------------------------------------

  const rowOf = (target) => (target instanceof Element ? target.closest(".jc-queue tr[data-job]") : null);
  const isBelow = (row, event) => {
    const box = row.getBoundingClientRect();
    return event.clientY > box.top + box.height / 2;
  };
  const unmark = () => {
    for (const each of document.querySelectorAll(".jc-drop-before, .jc-drop-after")) {
      each.classList.remove("jc-drop-before", "jc-drop-after");
    }
  };
  let dragged = null;
  document.addEventListener("dragstart", (event) => {
    dragged = rowOf(event.target);
    if (!dragged) return;
    dragged.classList.add("jc-dragged");
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", dragged.dataset.job);
  });
  document.addEventListener("dragover", (event) => {
    const row = rowOf(event.target);
    if (!dragged || !row || row.dataset.among !== dragged.dataset.among) return;
    event.preventDefault();
    unmark();
    if (row !== dragged) row.classList.add(isBelow(row, event) ? "jc-drop-after" : "jc-drop-before");
  });
  document.addEventListener("dragend", () => {
    dragged?.classList.remove("jc-dragged");
    dragged = null;
    unmark();
  });
  document.addEventListener("drop", (event) => {
    const row = rowOf(event.target);
    if (!dragged || !row || row === dragged || row.dataset.among !== dragged.dataset.among) return;
    event.preventDefault();
    const form = dragged.querySelector("form.jc-move");
    for (const [name, value] of Object.entries({ [isBelow(row, event) ? "after" : "before"]: row.dataset.job })) {
      const field = document.createElement("input");
      field.type = "hidden";
      field.name = name;
      field.value = value;
      form.append(field);
    }
    form.submit();
  });
  document.addEventListener("keydown", (event) => {
    const row = rowOf(event.target);
    if (!row || !event.altKey || event.ctrlKey || event.metaKey) return;
    const button = { ArrowUp: "up", ArrowDown: "down", Home: "top", End: "bottom" }[event.key];
    const found = button && row.querySelector(`button[data-move="${button}"]:not([disabled])`);
    if (!found) return;
    event.preventDefault();
    found.click();
  });

  // -- keys ------------------------------------------------------------------------------------------------------------------

  const nav = document.querySelector(".jc-bar");
  const dialog = document.querySelector(".jc-keys");
  const areOn = document.querySelector(".jc-keys-on");
  if (areOn) {
    areOn.checked = remembered("keys", "on") === "on";
    areOn.addEventListener("change", () => remember("keys", areOn.checked ? "on" : "off"));
  }
  document.querySelector(".jc-help")?.addEventListener("click", () => dialog.showModal());

  const PLACES = { d: "dashboard", j: "jobs", q: "queue", s: "schedules", w: "workers", t: "targets" };
  const KEYS = {
    "/": () => document.querySelector('#searchbar, .jc input[type="search"]')?.focus(),
    r: refresh,
    p: () => {
      if (!live) return;
      live.every.value = seconds() === 0 ? "5" : "0";
      live.every.dispatchEvent(new Event("change"));
    },
    "?": () => dialog?.showModal(),
  };
  let hasG = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !nav || dialog?.open || (areOn && !areOn.checked)) return;
    if (event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]")) return;
    const isPlace = hasG && event.key in PLACES;
    hasG = event.key === "g" && !hasG;
    const link = isPlace && document.querySelector(`.jc-bar a[data-key="${PLACES[event.key]}"]`);
    if (!link && !(event.key in KEYS)) return;
    event.preventDefault();
    if (link) link.click();
    else KEYS[event.key]();
  });
})();
