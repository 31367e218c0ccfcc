// Without this script, a Preview button opens a page. With it, the panel follows what is typed.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";

  const panel = document.querySelector("#schedule-preview[data-url]");
  const form = panel?.closest("form");
  if (!form) return;
  const NAMES = ["kind", "cron", "timezone", "every_sec", "anchor_at_0", "anchor_at_1", "run_at_0", "run_at_1"];
  const WAIT_MS = 350;
  let asked = 0;
  let timer;

  const typed = () => new URLSearchParams(NAMES.map((name) => [name, form.elements[name]?.value ?? ""]));

  const show = async () => {
    const mine = ++asked;
    try {
      const answer = await fetch(`${panel.dataset.url}?fragment=1&${typed()}`, { credentials: "same-origin", redirect: "error" });
      if (!answer.ok || mine !== asked) return; // something newer was typed meanwhile
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      panel.replaceChildren(...document.importNode(page.body, true).childNodes);
    } catch {
      // What was shown before stays.
    }
  };

  const soon = (event) => {
    if (!NAMES.includes(event.target.name)) return;
    clearTimeout(timer);
    timer = setTimeout(show, WAIT_MS);
  };
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
});
