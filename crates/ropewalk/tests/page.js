"use strict";
// node page.js PAGE: runs a page of `ropewalk model page` with a document that only remembers.
const fs = require("fs");
const vm = require("vm");

const html = fs.readFileSync(process.argv[2], "utf8");
const scripts = [...html.matchAll(/<script>([\s\S]*?)<\/script>/g)].map((match) => match[1]);

const elements = {};
function element(id) {
  elements[id] ??= { id, value: "0", textContent: "", innerHTML: "", listeners: {},
    append(child) { for (const [, made, value] of child.innerHTML.matchAll(/id="([^"]+)"[^>]*?(?:value="(\d+)")?>/g)) element(made).value = value ?? "0"; },
    addEventListener(name, call) { this.listeners[name] = call; } };
  return elements[id];
}
const document = { getElementById: element, createElement: () => ({ innerHTML: "" }) };
const context = vm.createContext({ document, Number, Math });
for (const script of scripts) vm.runInContext(script, context);

const fail = (why) => { console.error(why); process.exit(1); };
if (element("wrong").textContent) fail(element("wrong").textContent);
if (!element("best").textContent.startsWith("Best: ")) fail("nothing was drawn");
// A page that computes something else must notice.
const broken = vm.runInContext("model.check(CHECKS.map((row) => ({ ...row, goodput: row.goodput * 1.001 + 1e-3 }))).length", context);
if (!broken) fail("differences are not noticed");
for (const at of ["0", "1", "250", "500", "999", "1000"]) {
  for (const other of ["0", "500", "1000"]) {
    for (const id of ["bandwidth", "rtt", "buffer", "loss", "packet", "most"]) {
      element(id).value = other;
    }
    for (const id of ["bandwidth", "rtt", "buffer", "loss", "packet", "most"]) {
      element(id).value = at;
      elements.sliders.listeners.input();
      const shown = elements.plots.innerHTML + elements.best.textContent;
      if (/NaN|Infinity|undefined/.test(shown)) fail(`${id} at ${at}, others at ${other}: ${elements.best.textContent}`);
    }
  }
}
console.log(`${vm.runInContext("CHECKS.length", context)} checks agree`);
