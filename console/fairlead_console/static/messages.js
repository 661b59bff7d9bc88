// A search of messages goes on by itself: each answer has the records found so far, and the address of the next part.
// Without this script, the address is a link.
(() => {
  "use strict";

  let running = null;
  const search = async () => {
    running = new AbortController();
    let progress = document.getElementById("progress");
    while (progress?.dataset.next && running) {
      const stop = progress.querySelector("[data-stop]");
      stop.hidden = false;
      stop.nextElementSibling.hidden = true;
      let answer;
      try {
        answer = await fetch(progress.dataset.next, { headers: { "X-Part": "1" }, signal: running.signal });
        if (!answer.ok) break;
        const part = new DOMParser().parseFromString(await answer.text(), "text/html");
        const rows = part.querySelectorAll("#rows > tr");
        document.getElementById("rows").append(...rows);
        if (rows.length) document.querySelector("#found .messages").hidden = false;
        const next = part.getElementById("progress");
        const isFocused = document.activeElement === stop;
        progress.replaceWith(next);
        progress = next;
        if (isFocused) (next.querySelector("[data-stop]") ?? next.querySelector("a"))?.focus();
        document.dispatchEvent(new Event("htmx:after:swap"));
      } catch {
        break;
      }
    }
    const stop = progress?.querySelector("[data-stop]");
    if (stop) {
      stop.hidden = true;
      stop.nextElementSibling.hidden = false;
    }
    running = null;
  };
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-stop]")) return;
    const stopped = running;
    running = null;
    stopped?.abort();
  });
  search();
})();
