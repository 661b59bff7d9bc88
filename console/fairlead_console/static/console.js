// What pages do with a script: refresh themselves, show local times, draw plots, copy commands, take keys.
// Every page is complete without it. The file is loaded before htmx, so that its listeners get htmx's first events.
(() => {
  "use strict";

  const isInUse = (page) => {
    const active = document.activeElement;
    return (active && page.contains(active) && active.matches("input, select, textarea, button"))
      || page.querySelector("details[open] form, dialog[open]")
      || !document.getSelection().isCollapsed;
  };
  // A page requests itself again while it is visible and no form or text in it is in use.
  const refresh = () => {
    const page = document.getElementById("page");
    if (!page?.dataset.refreshSeconds || document.hidden || isInUse(page)) return;
    // A search has changed the address since the page was rendered.
    page.setAttribute("hx-get", location.pathname + location.search);
    page.dispatchEvent(new CustomEvent("refresh"));
  };
  // An answer that arrives when the page is in use would replace what the reader does.
  document.addEventListener("htmx:before:swap", (event) => {
    if (event.target.id === "page" && isInUse(event.target)) event.preventDefault();
  });
  let timer = null;
  const schedule = () => {
    clearInterval(timer);
    const seconds = Number(document.getElementById("page")?.dataset.refreshSeconds);
    if (seconds) timer = setInterval(refresh, seconds * 1000);
  };

  // Times in the zone of the reader; the title has UTC.
  const local = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
  const showTimes = (root) => {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (!Number.isNaN(at.valueOf())) time.textContent = local.format(at);
    }
    for (const zone of document.querySelectorAll("[data-zone]")) {
      const name = local.resolvedOptions().timeZone;
      zone.textContent = name === "UTC" ? name : `${name}; UTC on hover`;
    }
  };

  // Plots: a figure has its numbers in data-plot.
  const drawn = new WeakMap();
  const colour = (name) => {
    const probe = document.createElement("span");
    probe.className = `state ${name}`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const draw = (figure) => {
    const { times, series, unit } = JSON.parse(figure.dataset.plot);
    const place = figure.querySelector(".drawn");
    if (times.length < 2 || !place || typeof uPlot === "undefined") return;
    const data = [times, ...series.map(([, values]) => values)];
    const before = drawn.get(place);
    figure.classList.add("is-drawn");
    if (before && before.series.length === data.length) {
      before.setData(data);
      return;
    }
    before?.destroy();
    const style = getComputedStyle(document.documentElement);
    const soft = getComputedStyle(figure.querySelector("figcaption")).color;
    const strokes = [getComputedStyle(figure.querySelector("polyline")).stroke, colour("warn"), colour("bad"), colour("good")];
    const grid = { stroke: getComputedStyle(figure).borderTopColor, width: 1 };
    const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
    const text = (value) => (value == null ? "–" : unit === "bytes" ? bytes(value) : short.format(value));
    drawn.set(place, new uPlot({
      width: place.clientWidth || figure.clientWidth - 30,
      height: 170,
      padding: [8, 28, 0, 0],
      cursor: { y: false },
      series: [{ value: (_, at) => (at == null ? "–" : local.format(new Date(at * 1000))) },
        ...series.map(([label], index) => ({
          label, stroke: strokes[index % strokes.length], width: 1.5, points: { show: false }, value: (_, value) => text(value),
        }))],
      axes: [
        { stroke: soft, grid, ticks: grid, font: `12px ${style.fontFamily}`, space: 72,
          values: (_, splits, __, ___, step) => splits.map((at) => local.format(new Date(at * 1000)).slice(11, step < 60 ? 19 : 16)) },
        { stroke: soft, grid, ticks: grid, font: `12px ${style.fontFamily}`, size: 62,
          values: (_, splits) => splits.map(text), ...(unit === "bytes" ? { incrs: byteSteps } : {}) },
      ],
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.05, unit === "bytes" ? 8 : 1)] } },
    }, data, place));
  };
  // Ticks of bytes are powers of two, because sizes have binary prefixes.
  const byteSteps = Array.from({ length: 50 }, (_, power) => 2 ** power);
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let place = 0;
    while (value >= 1024 && place < units.length - 1) { value /= 1024; place += 1; }
    return `${Number(value.toFixed(value < 10 ? 1 : 0))} ${units[place]}`;
  };
  const drawAll = (root) => root.querySelectorAll("figure[data-plot]").forEach(draw);
  const redraw = () => {
    for (const place of document.querySelectorAll("figure[data-plot] .drawn")) {
      drawn.get(place)?.destroy();
      drawn.delete(place);
    }
    drawAll(document);
  };

  // Copying needs a secure context (https or this machine).
  const showButtons = (root) => {
    if (navigator.clipboard) root.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = false; });
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // The colours: those of the system, or the other ones, kept in a cookie so that the server sends the right page.
  const themeSwitch = document.querySelector("[data-theme-switch]");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { themeSwitch.textContent = isDark() ? "Light" : "Dark"; };
  if (themeSwitch) {
    themeSwitch.hidden = false;
    nameTheme();
    themeSwitch.addEventListener("click", () => {
      const theme = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = theme;
      document.cookie = `fairlead_theme=${theme}; path=/; max-age=31536000; samesite=strict`;
      nameTheme();
      redraw();
    });
    dark.addEventListener("change", () => { nameTheme(); redraw(); });
  }

  // Keys: / goes to the search of a page.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const found = document.querySelector(`[data-shortcut="${CSS.escape(event.key)}"]`);
    if (found) { event.preventDefault(); found.focus(); found.select?.(); }
  });

  // htmx listens only after the page has loaded: a search for text that was typed before begins here.
  document.addEventListener("htmx:after:init", (event) => {
    const field = event.target.querySelector?.("input[data-shortcut]");
    if (field && field.value !== field.defaultValue) field.dispatchEvent(new Event("input", { bubbles: true }));
  });

  const complete = (root) => { showTimes(root); drawAll(root); showButtons(root); };
  document.addEventListener("htmx:after:swap", () => { complete(document); schedule(); });
  let resizing = null;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 200); });
  complete(document);
  schedule();
})();
