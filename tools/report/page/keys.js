// SPDX-License-Identifier: Apache-2.0
// Keys that a block should read, above those that it read.
legend("keys-legend", [
  [c => fill(c, 0, 4, 22, 8, colour("--expected")), "upper lane: should be read"],
  [c => fill(c, 0, 4, 22, 8, colour("--read")), "lower lane: is read"],
  [
    c => {
      fill(c, 0, 0, 22, 16, colour("--extra"), "stripes", colour("--on-light"));
      write(c, "+", 11, 8, 14, colour("--on-light"), "center");
    },
    "read, but should not (+)"
  ],
  [
    c => {
      box(c, 1, 1, 20, 14, colour("--missing"), 2);
      write(c, "\u2212", 11, 8, 14, colour("--missing"), "center");
    },
    "should, but not read (\u2212)"
  ],
  [
    c => {
      box(c, 0, 3, 22, 10, colour("--faint"));
      write(c, "?", 11, 8, 10, colour("--faint"), "center");
    },
    "cannot be told (?)"
  ],
]);
// Token ids that matter, with the gaps between them cut out.
const axis = (blocks, readings, width) => {
  const spans = [];
  blocks.forEach((entry, i) => {
    for (const [first, count] of spread(entry[1]).concat(spread(entry[2])))
      if (first >= 0) spans.push([first, first + count]);
    for (const key of (readings[i].extra || []).concat(readings[i].missing || []))
      spans.push([key.before, key.before + key.count]);
  });
  spans.sort((a, b) => a[0] - b[0]);
  const merged = [];
  const length = spans.reduce((sum, s) => Math.max(sum, s[1]), 0) - (spans.length ? spans[0][0] : 0);
  for (const [first, end] of spans) {
    const last = merged[merged.length - 1];
    if (last && first - last.end <= Math.max(length * 0.04, 1))
      last.end = Math.max(last.end, end);
    else
      merged.push({first, end});
  }
  const cut = 16, tokens = merged.reduce((sum, s) => sum + s.end - s.first, 0);
  const unit = (width - cut * (merged.length - 1)) / Math.max(tokens, 1);
  let x = 0;
  for (const segment of merged) {
    segment.x = x;
    x += (segment.end - segment.first) * unit + cut;
  }
  return {
    segments: merged,
    unit,
    place: id => {
      const segment = merged.find(s => id >= s.first && id <= s.end) || merged[merged.length - 1];
      return segment.x + (id - segment.first) * unit;
    }
  };
};
const keysLabel = (entry, known) => {
  const size = layout().block_size, first = entry[0] * size;
  const base = `block ${entry[0]} (rows ${range(first, size)}): should read ${plural(total(entry[1]), "key")}, tokens ${
      ids(entry[1])}; `;
  if (known.extra === null) return `${base}unknown: ${known.source}`;
  if (!known.extra.length && !known.missing.length) return `${base}reads these (${known.source})`;
  return `${base}${known.extra.length ? `reads ${keysText(known.extra)} too; ` : ""}` +
      `${known.missing.length ? `leaves out ${keysText(known.missing)}; ` : ""}${known.source}`;
};
// Where things go: lanes of `lane` pixels, a block every `step`, the first one below `head`.
const keysView = width => {
  const blocks = layout().blocks, readings = blocks.map(reading), left = 74;
  const lane = [[1, 22], [8, 13], [32, 8], [Infinity, 4]].find(([most]) => blocks.length <= most)[1];
  const marks = blocks.length === 1 ? (readings[0].extra || []).concat(readings[0].missing || []) : [];
  const step = 2 * lane + (lane > 4 ? 8 : 3), head = marks.length ? 24 : 6, bottom = blocks.length * step + head + 2;
  return {width, blocks, readings, left, lane, marks, step, head, bottom, ...axis(blocks, readings, width - left - 12)};
};
const paintUnknown = (c, v, entry, y, brief) => {
  const runs = entry[1], start = v.left + v.place(runs[0]);
  const end = v.left + v.place(runs[runs.length - 2] + runs[runs.length - 1]);
  box(c, start, y, end - start, v.lane, colour("--faint"));
  if (v.lane <= 6) return;
  const size = Math.min(12, v.lane + 1);
  write(c, `?   ${brief}   ?`, (start + end) / 2, y + v.lane / 2, size, colour("--faint"), "center");
};
const paintMissing = (c, v, key, y) => {
  const x = v.left + v.place(key.first), w = Math.max(key.count * v.unit, 6);
  fill(c, x, y, w, v.lane, colour("--panel"));
  box(c, x, y, w, v.lane, colour("--missing"), 2);
  if (v.lane > 6) write(c, "\u2212", x + w / 2, y + v.lane / 2, v.lane, colour("--missing"), "center");
};
const paintExtra = (c, v, key, y) => {
  const x = v.left + v.place(key.before), w = Math.max(key.count * v.unit, 6), size = Math.min(v.lane + 2, 18);
  fill(c, x, y - 2, w, v.lane + 4, colour("--extra"), "stripes", colour("--on-light"));
  box(c, x, y - 2, w, v.lane + 4, colour("--ink"));
  if (v.lane > 6) writeOn(c, "+", x + w / 2, y + v.lane / 2, size, colour("--on-light"), colour("--extra"), "center");
};
const paintBlock = (c, v, i) => {
  const entry = v.blocks[i], known = v.readings[i], y = v.head + i * v.step, lower = y + v.lane + 1;
  const bars = (top, paint) => {
    for (const [first, count] of spread(entry[1]))
      fill(c, v.left + v.place(first), top, Math.max(count * v.unit, 3), v.lane, paint);
  };
  if (i === block && v.blocks.length > 1) fill(c, 0, y - 3, v.width, 2 * v.lane + 7, colour("--line"));
  if (v.lane > 6 || i % 8 === 0)
    write(c, `block ${entry[0]}`, 4, y + v.lane, Math.min(12, v.lane + 4), colour("--ink"));
  bars(y, colour("--expected"));
  if (known.extra === null) return paintUnknown(c, v, entry, lower, known.brief);
  bars(lower, colour("--read"));
  for (const [first, count] of v.unit > 9 ? spread(entry[1]) : [])
    for (let n = 1; n < count; n++)
      fill(c, v.left + v.place(first) + n * v.unit, y, 1, 2 * v.lane + 1, colour("--panel"));
  for (const key of known.missing) paintMissing(c, v, key, lower);
  for (const key of known.extra) paintExtra(c, v, key, lower);
};
// Names above a block that stands alone.
const paintMarks = (c, v) => {
  let from = v.left;
  for (const key of v.marks.slice().sort((a, b) => a.before - b.before)) {
    const sign = v.readings[0].extra.includes(key) ? "+" : "\u2212", kind = key.padding ? "padding row" : "token";
    const text = `${sign} ${kind}${key.count > 1 ? "s" : ""} ${range(key.first, key.count)}`, long = 6.6 * text.length;
    const middle = v.left + v.place(key.before) + Math.max(key.count * v.unit, 6) / 2;
    const x = Math.min(Math.max(middle - long / 2, v.left), v.width - long - 2);
    if (x < from) continue;
    write(c, text, x, 9, 12, colour("--ink"));
    fill(c, middle, 16, 1, 8, colour("--ink"));
    from = x + long + 12;
  }
};
const paintAxis = (c, v) => {
  const tokens = state().committed + forward().seq_len;  // what is drawn past them is padding
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find(n => n * v.unit >= 56) || 10000;
  let from = 0;
  const tick = id => {
    const x = v.left + v.place(id) + v.unit / 2, half = 3.5 * `${id}`.length;
    if (x - half < from || x + half > v.width) return;
    fill(c, x, v.bottom, 1, 4, colour("--faint"));
    write(c, id, x, v.bottom + 13, 11, colour("--faint"), "center");
    from = x + half + 10;
  };
  v.segments.forEach((s, i) => {
    const long = (s.end - s.first) * v.unit;
    fill(c, v.left + s.x, v.bottom, long, 1, colour("--faint"));
    tick(s.first);
    for (let id = Math.ceil((s.first + 1) / every) * every; id < Math.min(s.end, tokens); id += every) tick(id);
    if (i + 1 < v.segments.length)
      write(c, "\u22ef", v.left + s.x + long + 8, v.bottom + 1, 13, colour("--faint"), "center");
  });
  write(c, "token", 4, v.bottom + 12, 11, colour("--faint"));
};
const keysSummary = v => {
  const wrong = v.readings.filter(r => r.extra && (r.extra.length || r.missing.length)).length;
  const unknown = v.readings.filter(r => !r.extra).length, all = layout().blocks_in_all;
  const some = v.blocks.length < all ? ` (${v.blocks.length} of them shown)` : "";
  const what = wrong || unknown ?
      `${wrong} known to read other keys than ${wrong === 1 ? "it" : "they"} should, ${unknown} not known.` :
      "every one reads exactly its window.";
  return `${plural(all, "causal block")}${some}: ${what}`;
};
chart("keys", width => {
  const v = keysView(width);
  const choose = i => {
    block = i;
    refresh();
  };
  const cells = v.blocks.map((entry, i) => {
    const y = v.head + i * v.step, text = () => keysLabel(entry, v.readings[i]);
    return {x: 2, y, w: width - 4, h: 2 * v.lane + 1, text, action: () => choose(i)};
  });
  return {
    cells,
    height: v.bottom + 24,
    label: keysSummary(v),
    paint: c => {
      v.blocks.forEach((entry, i) => paintBlock(c, v, i));
      paintMarks(c, v);
      paintAxis(c, v);
    }
  };
});
lazyTable(
    "keys-table",
    () => table(
        ["block", "rows", "keys", "should read tokens", "reads too", "leaves out", "how it is known"],
        layout().blocks.map(entry => {
          const known = reading(entry), size = layout().block_size;
          return [
            entry[0], range(entry[0] * size, size), total(entry[1]), ids(entry[1]),
            known.extra === null ? "?" : keysText(known.extra) || "nothing",
            known.extra === null ? "?" : keysText(known.missing) || "nothing", known.source
          ];
        })));
