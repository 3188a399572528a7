// SPDX-License-Identifier: Apache-2.0
// Draws what report_collect (collect.c) found. Texts of the trace only ever become text nodes or canvas text.
//   rollouts: geometry; cells [[first page, pages, 1 if private]]; guard_page
//   states:   rollout; committed, fixed, history, staged tokens; what changed since the last one:
//             [[cell, slot, id, count, ...]]
//   layouts:  block_size; blocks [[block, expected ids, read ids, pages, keys]], lists as [first, count, ...]
//   forwards: n, verdict, tolerance, recorded and replayed {error, row, ...}, heat maps, state, layout;
//             explained if wrong; padding {error, row} if the recorded output has something in its padding rows
//   timeline: a letter an op: o open, w write_range, z zero_values, f F forward (wrong), c commit, x close
//   numbers:  for each op its rollout, tokens or forward
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const config = data.config, ranks = data.ranks, P = config.tokens_per_page;
const forwards = data.forwards;
const LEVELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", TOLERANCE = 20, TOP = 61;
let at = 0, block = 0, map = null;  // selected: index into forwards, place in its layout's blocks, heat map

// Words.
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const range = (first, count) => count === 1 ? `${first}` : `${first}-${first + count - 1}`;
const number = x => typeof x === "string" || x === 0 ? `${x}` :
    Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6 ? x.toExponential(1).replace(".0e", "e") :
                                               `${Number(x.toPrecision(2))}`;
const ids = runs => {
  const parts = [];
  for (let i = 0; i < runs.length; i += 2) parts.push(runs[i] < 0 ? "never written" : range(runs[i], runs[i + 1]));
  return parts.join(", ") || "none";
};
const total = runs => runs.reduce((sum, value, i) => sum + (i % 2 ? value : 0), 0);
const times = level => {  // of the tolerance
  if (level === 0) return "no error";
  if (level >= TOP) return "over a million times the tolerance, or no number";
  const factor = 2 ** ((level - TOLERANCE) / 2);
  return level > TOLERANCE ? `up to ${number(factor)} times the tolerance` :
                             `up to ${number(factor * 1.4143)} of the tolerance`;
};
// What would turn or hide text shows as what it is not.
const clean = text => text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "\ufffd");
const keyText = key => {
  const name = key.padding ? "padding row" : "token";
  const who = key.forward < 0 ? "written on every rank" :
      key.rank < 0            ? `of forward ${key.forward}, in no rank's shard` :
                                `of forward ${key.forward} rank ${key.rank}`;
  const often = key.times > 1 ? `, ${key.times} times` : "";
  return `${name}${key.count > 1 ? "s" : ""} ${range(key.first, key.count)} (${who}${often})`;
};
const keysText = keys => keys.map(keyText).join("; ");

// Elements.
const make = (tag, text, ...children) => {
  const element = document.createElement(tag);
  if (text !== null) element.textContent = text;
  element.append(...children);
  return element;
};
const table = (titles, rows) => {
  const heading = make("tr", null, ...titles.map(title => Object.assign(make("th", title), {scope: "col"})));
  const body = rows.map(row => make("tr", null, ...row.map(cell => make("td", `${cell}`))));
  return make("table", null, make("thead", null, heading), make("tbody", null, ...body));
};
