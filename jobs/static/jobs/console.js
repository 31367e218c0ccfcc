// Optional: refreshes pages, and adds dragging of rows and keyboard shortcuts. The console works without it.
(() => {
  "use strict";

  const readSetting = (name, fallback) => {
    try {
      return localStorage.getItem(`jobs.${name}`) ?? fallback;
    } catch {
      return fallback;
    }
  };
  const storeSetting = (name, value) => {
    try {
      localStorage.setItem(`jobs.${name}`, value);
    } catch {
      // Without local storage, the setting lasts as long as the page.
    }
  };

  // -- live refresh: request this page again, and replace the elements with data-live ------------------------------

  const bar = document.querySelector(".jc-bar[data-live-url]");
  const live = bar && {
    box: bar.querySelector(".jc-live"),
    state: bar.querySelector(".jc-live-state"),
    age: bar.querySelector(".jc-live-age"),
    every: bar.querySelector(".jc-live-every"),
    etag: bar.dataset.liveEtag,
    backoff: 1,
    refreshedAt: Date.now(),
    nextAt: Date.now(),
    isLoading: false,
  };

  const intervalSec = () => Number(live.every.value);
  const isInUse = () => {
    const focused = document.activeElement;
    return (
      document.querySelector('#result_list input[type="checkbox"]:checked, .jc-dragged, dialog[open]') !== null ||
      (focused !== null && focused.matches("input, textarea, select") && !live.box.contains(focused))
    );
  };

  const showState = () => {
    const { state, age } = live;
    const isStale = live.backoff > 1;
    bar.classList.toggle("jc-is-stale", isStale);
    const label = isStale ? state.dataset.stale : intervalSec() === 0 ? state.dataset.paused : state.dataset.fresh;
    if (state.textContent !== label) state.textContent = label;
    age.textContent = age.dataset.ago.replace("%s", Math.round((Date.now() - live.refreshedAt) / 1000));
  };

  const replaceLive = (page) => {
    for (const fresh of page.querySelectorAll("[data-live]")) {
      const old = document.querySelector(`[data-live="${CSS.escape(fresh.dataset.live)}"]`);
      if (old && old.innerHTML !== fresh.innerHTML) {
        const open = new Set([...old.querySelectorAll("details[open][id]")].map((details) => details.id));
        const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
        const fields = [...old.querySelectorAll("input[type=text][id], textarea[id]")];
        const typed = fields.map((field) => [field.id, field.value]);
        old.replaceChildren(...document.importNode(fresh, true).childNodes);
        for (const id of open) document.getElementById(id)?.setAttribute("open", "");
        for (const [id, value] of typed) {
          if (value && document.getElementById(id)) document.getElementById(id).value = value;
        }
        if (focused) document.getElementById(focused)?.focus();
      }
    }
    // The admin's own script only knows the checkboxes of the first page.
    if (window.Actions) window.Actions(document.querySelectorAll("tr input.action-select"));
    document.dispatchEvent(new CustomEvent("jobs:fresh"));
  };

  const refresh = async () => {
    if (!live || live.isLoading) return;
    live.isLoading = true;
    try {
      const response = await fetch(bar.dataset.liveUrl, {
        headers: { "X-Jobs-Live": "1", "If-None-Match": live.etag },
        cache: "no-store",
        credentials: "same-origin",
        redirect: "error", // never insert a login page into this one
      });
      if (!response.ok && response.status !== 304) throw new Error(String(response.status));
      if (response.status !== 304) {
        const text = await response.text();
        if (isInUse()) return; // do not replace rows while the user selects or types
        live.etag = response.headers.get("ETag") ?? "";
        replaceLive(new DOMParser().parseFromString(text, "text/html"));
      }
      live.refreshedAt = Date.now();
      live.backoff = 1;
    } catch {
      live.backoff = Math.min(live.backoff * 2, 8);
    } finally {
      live.isLoading = false;
      live.nextAt = Date.now() + Math.max(intervalSec(), 1) * 1000 * live.backoff;
      showState();
    }
  };

  if (live) {
    live.box.hidden = false;
    const stored = readSetting("live", bar.dataset.liveEvery);
    if ([...live.every.options].some((option) => option.value === stored)) live.every.value = stored;
    live.nextAt += intervalSec() * 1000;
    live.every.addEventListener("change", () => {
      storeSetting("live", live.every.value);
      live.nextAt = Date.now() + intervalSec() * 1000;
      showState();
    });
    setInterval(() => {
      if (document.hidden) return;
      showState();
      if (intervalSec() > 0 && Date.now() >= live.nextAt && !isInUse()) refresh();
    }, 1000);
    showState();
  }

  // -- counts of the tabs, loaded after the page -------------------------------------------------------------------

  const counts = document.querySelector("[data-counts-url]");
  const loadCounts = async () => {
    try {
      const response = await fetch(counts.dataset.countsUrl, {
        headers: { "X-Jobs-Live": "1" },
        credentials: "same-origin",
        redirect: "error",
      });
      if (!response.ok) return;
      const byStatus = await response.json();
      for (const element of counts.querySelectorAll("[data-count]")) {
        const text = byStatus[element.dataset.count];
        if (text !== undefined) element.textContent = text;
      }
    } catch {
      // Without their counts, the tabs are still links.
    }
  };
  if (counts) {
    loadCounts();
    document.addEventListener("jobs:fresh", loadCounts);
  }

  // -- filters: leave empty ones out of the URL --------------------------------------------------------------------

  document.addEventListener("submit", (event) => {
    for (const field of event.target.matches(".jc-filters") ? event.target.elements : []) {
      if (field.matches("select")) field.disabled = field.value === "";
    }
  });

  // On a phone the tabs are in one line: scroll to the current one.
  for (const tab of document.querySelectorAll(".jc-tabs [aria-current]")) {
    const tabs = tab.parentElement;
    if (tabs.scrollWidth > tabs.clientWidth) tabs.scrollLeft = tab.offsetLeft - tabs.offsetLeft;
  }

  // -- copy buttons ------------------------------------------------------------------------------------------------

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    if (source && navigator.clipboard) navigator.clipboard.writeText(source.textContent);
  });
  if (navigator.clipboard) for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;

  // -- the queue: drag a row, or move the focused one with Alt and the arrows --------------------------------------

  const rowOf = (target) => (target instanceof Element ? target.closest(".jc-queue tr[data-job]") : null);
  const isBelow = (row, event) => {
    const box = row.getBoundingClientRect();
    return event.clientY > box.top + box.height / 2;
  };
  const clearDropMarkers = () => {
    for (const row of document.querySelectorAll(".jc-drop-before, .jc-drop-after")) {
      row.classList.remove("jc-drop-before", "jc-drop-after");
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
    clearDropMarkers();
    if (row !== dragged) row.classList.add(isBelow(row, event) ? "jc-drop-after" : "jc-drop-before");
  });
  document.addEventListener("dragend", () => {
    dragged?.classList.remove("jc-dragged");
    dragged = null;
    clearDropMarkers();
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
    const move = { ArrowUp: "up", ArrowDown: "down", Home: "top", End: "bottom" }[event.key];
    const button = move && row.querySelector(`button[data-move="${move}"]:not([disabled])`);
    if (!button) return;
    event.preventDefault();
    button.click();
  });

  // -- keyboard shortcuts ------------------------------------------------------------------------------------------

  const nav = document.querySelector(".jc-bar");
  const dialog = document.querySelector(".jc-keys");
  const keysEnabled = document.querySelector(".jc-keys-on");
  if (keysEnabled) {
    keysEnabled.checked = readSetting("keys", "on") === "on";
    keysEnabled.addEventListener("change", () => storeSetting("keys", keysEnabled.checked ? "on" : "off"));
  }
  document.querySelector(".jc-help")?.addEventListener("click", () => dialog.showModal());

  const DESTINATIONS = { d: "dashboard", j: "jobs", q: "queue", s: "schedules", w: "workers", t: "targets" };
  const KEYS = {
    "/": () => document.querySelector('#searchbar, .jc input[type="search"]')?.focus(),
    r: refresh,
    p: () => {
      if (!live) return;
      live.every.value = intervalSec() === 0 ? "5" : "0";
      live.every.dispatchEvent(new Event("change"));
    },
    "?": () => dialog?.showModal(),
  };
  let isAfterG = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !nav || dialog?.open) return;
    if (keysEnabled && !keysEnabled.checked) return;
    if (event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]")) return;
    const isDestination = isAfterG && event.key in DESTINATIONS;
    isAfterG = event.key === "g" && !isAfterG;
    const link = isDestination && document.querySelector(`.jc-bar a[data-key="${DESTINATIONS[event.key]}"]`);
    if (!link && !(event.key in KEYS)) return;
    event.preventDefault();
    if (link) link.click();
    else KEYS[event.key]();
  });
})();
