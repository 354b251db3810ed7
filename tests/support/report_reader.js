// Put at the end of a report's page by test_report_browser.py: uses the page as a reader would, and writes what it saw
// into the page as JSON.
"use strict";
(async () => {
  const settled = () => new Promise((done) => setTimeout(done, 120));
  const first = (selector) => document.querySelector(".live " + selector);

  // How many colours each chart is painted in: a blank one has none.
  function colours() {
    return [...document.querySelectorAll(".live canvas")].map((canvas) => {
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const found = new Set();
      for (let at = 0; at < pixels.length; at += 4)
        if (pixels[at + 3] > 250) found.add((pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2]);
      return found.size;
    });
  }

  function mouse(type, share, target = first(".u-over")) {
    const box = first(".u-over").getBoundingClientRect();
    // uPlot takes a move without movement for none.
    const place = { movementX: 1, clientX: box.left + share * box.width, clientY: box.top + box.height / 2 };
    target.dispatchEvent(new MouseEvent(type, { bubbles: true, button: 0, ...place }));
  }

  // The first chart's legend with the mouse at the middle, and its picture.
  async function look() {
    await settled();
    mouse("mousemove", 0.5);
    await settled();
    const rows = [...document.querySelector(".live").querySelectorAll(".u-series")];
    const text = (row, part) => row.querySelector(part).textContent;
    return {
      legend: Object.fromEntries(rows.map((row) => [text(row, ".u-label"), text(row, ".u-value")])),
      picture: first("canvas").toDataURL(),
    };
  }

  const [steps, time, tokens, smoothing, log] = document.querySelectorAll(".controls input");
  function slide(value) {
    smoothing.value = value;
    smoothing.dispatchEvent(new Event("input"));
  }
  const seen = {};
  async function after(name, act) {
    await act();
    seen[name] = await look();
  }

  seen.start = await look();
  seen.colours = colours();
  await after("time", () => time.click());
  await after("tokens", () => tokens.click());
  await after("steps", () => steps.click());
  await after("smooth", () => slide(0.9));
  await after("rough", () => slide(0));
  await after("log", () => log.click());
  await after("linear", () => log.click());
  await after("zoomed", async () => {
    mouse("mousedown", 0.2);
    mouse("mousemove", 0.4);
    await settled();
    mouse("mouseup", 0.4, document);
  });
  await after("whole", () => mouse("dblclick", 0.5));
  seen.errors = window.errorsOfThePage;
  seen.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  const output = document.createElement("output");
  output.textContent = JSON.stringify(seen);
  document.body.append(output);
})();
