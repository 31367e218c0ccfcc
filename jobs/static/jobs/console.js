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

  const bar = document.querySelector(".jc-bar");
  const box = bar?.querySelector(".jc-live");
  const live = bar?.dataset.liveUrl !== undefined && {
    state: box.querySelector(".jc-live-state"),
    age: box.querySelector(".jc-live-age"),
    login: box.querySelector(".jc-live-login"),
    every: box.querySelector(".jc-live-every"),
    etag: bar.dataset.liveEtag,
    backoff: 1,
    isLoggedOut: false,
    refreshedAt: Date.now(),
    nextAt: Date.now(),
    isLoading: false,
  };
  if (box) box.hidden = false;

  const intervalSec = () => Number(live.every.value);
  // Why nothing may be replaced now: the name of the text that says so, or "".
  const findUse = () => {
    if (document.querySelector('#result_list input[type="checkbox"]:checked, .jc-dragged')) return "selected";
    const focused = document.activeElement;
    const isField = focused !== null && focused.matches("input, textarea, select") && !box.contains(focused);
    return isField || document.querySelector("dialog[open]") ? "typing" : "";
  };
  const secondsSince = (moment) => Math.max(Math.round((Date.now() - moment) / 1000), 0);

  const showState = () => {
    const { state, age } = live;
    const isLost = live.backoff > 1;
    const name = live.isLoggedOut ? "login" : isLost ? "lost" : intervalSec() === 0 ? "off" : findUse() || "on";
    bar.classList.toggle("jc-is-stale", isLost || live.isLoggedOut);
    if (state.textContent !== state.dataset[name]) state.textContent = state.dataset[name];
    live.login.hidden = !live.isLoggedOut;
    if (name === "lost") age.textContent = age.dataset.retry.replace("%s", secondsSince(2 * Date.now() - live.nextAt));
    else if (name === "login") age.textContent = "";
    else age.textContent = age.dataset.updated.replace("%s", secondsSince(live.refreshedAt));
  };

  const replaceLive = (page) => {
    for (const fresh of page.querySelectorAll("[data-live]")) {
      for (const old of document.querySelectorAll(`[data-live="${CSS.escape(fresh.dataset.live)}"]`)) {
        if (old.innerHTML === fresh.innerHTML) continue;
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
    // The admin's own script only knows the checkboxes of the first page. Forms load it, too, and empty lists have no
    // checkbox for all rows, which it needs.
    if (window.Actions && document.getElementById("action-toggle")) {
      window.Actions(document.querySelectorAll("tr input.action-select"));
    }
    document.dispatchEvent(new CustomEvent("jobs:fresh"));
  };

  // Return the response, or null if there is none or it is an error.
  const request = async () => {
    try {
      const response = await fetch(bar.dataset.liveUrl, {
        headers: { "X-Jobs-Live": "1", "If-None-Match": live.etag },
        cache: "no-store",
        credentials: "same-origin",
        redirect: "manual", // a redirect leads to the login page, which is never inserted into this one
      });
      if (response.type === "opaqueredirect") return { isLoggedOut: true };
      if (response.status === 304) return { text: null };
      return response.ok ? { text: await response.text(), etag: response.headers.get("ETag") ?? "" } : null;
    } catch {
      return null;
    }
  };

  const refresh = async () => {
    if (!live || live.isLoading) return;
    live.isLoading = true;
    const answer = await request();
    live.isLoading = false;
    live.isLoggedOut = answer?.isLoggedOut === true;
    if (answer === null || live.isLoggedOut) {
      live.backoff = Math.min(live.backoff * 2, 8);
    } else {
      live.backoff = 1;
      live.refreshedAt = Date.now();
    }
    live.nextAt = Date.now() + Math.max(intervalSec(), 1) * 1000 * live.backoff;
    // Rows are not replaced while the user selects or types; the next answer is whole again, since the etag stays.
    if (typeof answer?.text === "string" && !findUse()) {
      live.etag = answer.etag;
      replaceLive(new DOMParser().parseFromString(answer.text, "text/html"));
    }
    showState();
  };

  if (live) {
    live.login.href += `?next=${encodeURIComponent(location.pathname + location.search)}`;
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
      if (intervalSec() > 0 && Date.now() >= live.nextAt && !findUse()) refresh();
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
        redirect: "manual", // an error without a message in the browser's log when the user is logged out
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
      if (field.matches("select, input")) field.disabled = field.value === "";
    }
  });

  // On a phone the tabs are in one line: scroll to the current one.
  for (const tab of document.querySelectorAll(".jc-tabs [aria-current]")) {
    const tabs = tab.parentElement;
    if (tabs.scrollWidth > tabs.clientWidth) tabs.scrollLeft = tab.offsetLeft - tabs.offsetLeft;
  }

  // -- copy buttons, hidden without the script ---------------------------------------------------------------------

  // `navigator.clipboard` exists only over HTTPS and on localhost.
  const copyText = async (text) => {
    if (navigator.clipboard) {
      try {
        await navigator.clipboard.writeText(text);
        return true;
      } catch {
        // Not allowed: try the other way.
      }
    }
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "jc-hidden";
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  };
  const showCopyButtons = () => {
    for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    const source = button && document.getElementById(button.dataset.copy);
    if (!source || button.dataset.label !== undefined) return;
    const isCopied = await copyText(source.textContent);
    button.focus();
    button.dataset.label = button.textContent;
    button.textContent = isCopied ? (bar?.dataset.copied ?? "✓") : "✗";
    setTimeout(() => {
      button.textContent = button.dataset.label;
      delete button.dataset.label;
    }, 2000);
  });
  showCopyButtons();
  document.addEventListener("jobs:fresh", showCopyButtons);

  // -- exact times in the zone of the browser, if the user wants: the title of <time>, and its text if it is exact -----

  const localBox = document.querySelector(".jc-times-local");
  const showLocalTimes = () => {
    if (!localBox?.checked) return;
    const language = document.documentElement.lang || undefined;
    for (const element of document.querySelectorAll("time[datetime]:not([data-local])")) {
      const moment = new Date(element.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      element.dataset.local = "";
      element.title = moment.toLocaleString(language, { dateStyle: "medium", timeStyle: "long" });
      const exact = /^(?<date>.* )?\d\d:\d\d:\d\d(?<fraction>\.\d{3})?$/.exec(element.textContent.trim());
      if (!exact) continue;
      const clock = moment.toLocaleTimeString(language, { hourCycle: "h23" }) + (exact.groups.fraction ?? "");
      const day = exact.groups.date ? `${moment.toLocaleDateString("sv")} ` : "";
      element.textContent = day + clock;
    }
  };
  if (localBox) {
    localBox.checked = readSetting("times", "server") === "local";
    localBox.addEventListener("change", () => {
      storeSetting("times", localBox.checked ? "local" : "server");
      location.reload();
    });
    showLocalTimes();
    document.addEventListener("jobs:fresh", showLocalTimes);
  }

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

  const dialog = document.querySelector(".jc-keys");
  const keysEnabled = document.querySelector(".jc-keys-on");
  if (keysEnabled) {
    keysEnabled.checked = readSetting("keys", "on") === "on";
    keysEnabled.addEventListener("change", () => storeSetting("keys", keysEnabled.checked ? "on" : "off"));
  }
  document.querySelector(".jc-help")?.addEventListener("click", () => dialog.showModal());

  // The row that has the focus is the current one; after a refresh it is found again by its link.
  let rowLink = "";
  const listRows = () => [...document.querySelectorAll("#result_list tbody > tr, .jc-queue tbody > tr")];
  const findRowLink = (row) => row?.querySelector("a[href]")?.getAttribute("href") ?? "";
  const findCurrentRow = () => document.activeElement?.closest("#result_list tbody > tr, .jc-queue tbody > tr");
  const moveRow = (step) => {
    const rows = listRows();
    if (rows.length === 0) return;
    const current = findCurrentRow() ?? rows.find((row) => rowLink && findRowLink(row) === rowLink);
    const index = current ? rows.indexOf(current) + step : step > 0 ? 0 : rows.length - 1;
    const row = rows[Math.min(Math.max(index, 0), rows.length - 1)];
    row.tabIndex = -1;
    row.focus();
    rowLink = findRowLink(row);
  };
  document.addEventListener("jobs:fresh", () => {
    const row = document.activeElement === document.body && listRows().find((item) => rowLink && findRowLink(item) === rowLink);
    if (!row) return;
    row.tabIndex = -1;
    row.focus();
  });
  document.addEventListener("focusin", (event) => {
    if (!event.target.closest("#result_list tbody > tr, .jc-queue tbody > tr")) rowLink = "";
  });

  const DESTINATIONS = { d: "overview", j: "jobs", q: "queue", s: "schedules", w: "workers", t: "targets" };
  const KEYS = {
    "/": () => document.querySelector('#searchbar, .jc input[type="search"]')?.focus(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => findCurrentRow()?.querySelector('input[type="checkbox"]')?.click(),
    r: refresh,
    p: () => {
      if (!live) return;
      live.every.value = intervalSec() === 0 ? "5" : "0";
      live.every.dispatchEvent(new Event("change"));
    },
    "?": () => dialog.showModal(),
  };
  let isAfterG = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !dialog || dialog.open) return;
    if (!keysEnabled.checked) return;
    if (event.target instanceof Element && event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) {
      return;
    }
    if (event.key === "Enter" && event.target === findCurrentRow()) {
      event.target.querySelector("a[href]")?.click();
      return;
    }
    const isDestination = isAfterG && event.key in DESTINATIONS;
    isAfterG = event.key === "g" && !isAfterG;
    const link = isDestination && document.querySelector(`.jc-bar a[data-key="${DESTINATIONS[event.key]}"]`);
    if (!link && !(event.key in KEYS)) return;
    event.preventDefault();
    if (link) link.click();
    else KEYS[event.key]();
  });
})();
