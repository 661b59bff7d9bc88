// The live tail: a stream with the rows of each second. It stops while it is paused or the page is hidden.
(() => {
  "use strict";

  const ROWS_MAX = 200;
  const tail = document.getElementById("tail");
  if (!tail) return;
  const button = tail.querySelector("[data-pause]");
  const state = tail.querySelector("[data-state]");
  const rows = document.getElementById("rows");
  const number = new Intl.NumberFormat("en");
  let source = null;
  let isPaused = false;
  let skipped = 0;

  const say = (text) => { state.textContent = text; };
  const close = () => { source?.close(); source = null; };
  const stop = (text) => {
    close();
    isPaused = true;
    button.textContent = "Resume";
    say(text);
  };
  const add = (sample) => {
    skipped += sample.arrived - sample.read;
    const found = new DOMParser().parseFromString(sample.rows, "text/html").querySelectorAll("tr");
    if (found.length) {
      rows.prepend(...found);
      rows.closest(".messages").hidden = false;
      while (rows.rows.length > ROWS_MAX) rows.lastElementChild.remove();
      document.dispatchEvent(new Event("htmx:after:swap"));
    }
    const rest = skipped ? ` ${number.format(skipped)} records were skipped.` : "";
    say(sample.arrived ? `${number.format(sample.arrived)} records in the last second.${rest}` : `Waiting for records.${rest}`);
  };
  const open = () => {
    if (source || isPaused || document.hidden) return;
    say("The tail begins.");
    source = new EventSource(tail.dataset.events);
    source.addEventListener("sample", (event) => add(JSON.parse(event.data)));
    source.addEventListener("trouble", (event) => stop(JSON.parse(event.data).text));
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) stop("The console refuses the tail; load the page again.");
      else say("The console does not answer. The tail goes on when it does.");
    });
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    if (isPaused) {
      isPaused = false;
      button.textContent = "Pause";
      open();
    } else {
      stop("Paused. Records that arrive now are not shown.");
    }
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  open();
})();
