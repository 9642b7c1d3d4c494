// Puts a campaign's progress into the page's table as the server sends it. Without this script, load the page again.
"use strict";
(() => {
  const main = document.querySelector("main"), body = document.querySelector("tbody");
  const line = document.querySelector("header p");
  const hidden = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g;
  const cell = (kind, text) => {
    const made = document.createElement(kind);
    made.textContent = String(text).replace(hidden, "?");
    return made;
  };
  const source = new EventSource(main.dataset.events);
  source.addEventListener("progress", (event) => {
    const found = JSON.parse(event.data);
    line.textContent = found.line;
    body.replaceChildren(...found.devices.map((device) => {
      const row = document.createElement("tr"), name = cell("th", device.device);
      name.scope = "row";
      row.append(name, ...[device.stored, device.failed, device.state || "-"].map((text) => cell("td", text)));
      return row;
    }));
  });
})();
