// SPDX-License-Identifier: Apache-2.0
// Error by row and head.
const mix = (a, b, t) => {
  const parse = text => [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16)), [x, y] = [parse(a), parse(b)];
  return `rgb(${x.map((value, i) => Math.round(value + (y[i] - value) * t)).join(",")})`;
};
const HOT = 45;  // the darkest: 5800 times the tolerance
const heatColour = level => level <= TOLERANCE ?
    mix(colour("--low"), colour("--below"), level / TOLERANCE) :
    mix(colour("--above"), colour("--high"), Math.min((level - TOLERANCE - 1) / (HOT - TOLERANCE - 1), 1));
legend("heat-legend", [
  [
    c => {
      for (let i = 0; i < 22; i++) fill(c, i, 0, 1, 16, heatColour(Math.round(i * TOLERANCE / 21)));
    },
    "within the tolerance, from a 1000th of it"
  ],
  [
    c => {
      for (let i = 0; i < 22; i++)
        fill(c, i, 0, 1, 16, heatColour(TOLERANCE + 1 + Math.round(i * (HOT - TOLERANCE - 1) / 21)));
      write(c, "\u00d7", 11, 8, 13, colour("--on-light"), "center");
    },
    "wrong (\u00d7), to 6000 times the tolerance and more"
  ],
  [
    c => {
      fill(c, 0, 0, 22, 16, colour("--low"), "stripes", colour("--faint"));
    },
    "padding rows"
  ],
  [
    c => {
      fill(c, 0, 7, 22, 2, colour("--ink"));
    },
    "between ranks: shards of rows, slices of heads"
  ],
]);
// What a model leaves in padding rows is shown and no mistake; ckv leaves zeros there.
const isNoted = row => heatName() === "recorded" && row >= forward().seq_len;
const heatName = () => {
  const f = forward();
  if (map && f.heat[map]) return map;
  return f.explained ? f.explained.output : f.heat.recorded ? "recorded" : "replayed";
};

// Where things go: a line of `h` pixels for heads, a column of `w` for rows.
const heatView = width => {
  const f = forward(), heat = f.heat[heatName()], heads = heatColumns(heat), rows = heat.levels.length / heads;
  const left = 74, top = 20, w = Math.min((width - left - 4) / rows, 40);
  return {f, heat, heads, rows, left, top, w, h: heads <= 16 ? 18 : heads <= 32 ? 11 : 6};
};
const heatText = (v, row, head, level) => {
  const rows = range(row, Math.min(v.heat.rows, v.f.rows - row));
  const heads = range(head, Math.min(v.heat.heads, config.q_heads - head));
  const where = row >= v.f.seq_len ? "padding" : `shard of rank ${Math.floor(row / rowsPerRank())}`;
  return `row ${rows} (${where}), head ${heads} (rank ${Math.floor(head * ranks / config.q_heads)}): ${times(level)}`;
};
const heatCells = v => {
  const cells = [];
  for (let y = 0; y < v.heads; y++)
    for (let x = 0; x < v.rows; x++) {
      const level = levelOf(v.heat.levels[x * v.heads + y]), row = x * v.heat.rows, head = y * v.heat.heads;
      const isWrong = level > TOLERANCE && !isNoted(row), text = () => heatText(v, row, head, level);
      cells.push({x: v.left + x * v.w, y: v.top + y * v.h, w: v.w, h: v.h, level, row, isWrong, text});
    }
  return cells;
};
const heatSummary = (v, cells) => {
  const wrong = cells.filter(cell => cell.isWrong).length, {rows, heads} = v.heat;
  const what = wrong ? `${wrong} of ${cells.length} cells are wrong` : "all within the tolerance";
  return `${heatName()} output, ${plural(v.f.rows, "row")} and ${plural(config.q_heads, "head")}: ${what}` +
      `${rows * heads > 1 ? ` (a cell is ${rows} by ${heads})` : ""}.`;
};
const paintHeat = (c, v, cell) => {
  const {x, y, w, h, level, row, isWrong} = cell, hatch = row >= v.f.seq_len ? "stripes" : null;
  const paint = isNoted(row) ? colour("--low") : heatColour(level);
  fill(c, x, y, w - (w > 6 ? 1 : 0), h - (h > 6 ? 1 : 0), paint, hatch, colour("--faint"));
  const ink = colour(level > (TOLERANCE + HOT) / 2 ? "--ground" : "--on-light");
  if (isWrong && w > 8 && h > 8) write(c, "\u00d7", x + w / 2, y + h / 2, Math.min(w, h) * 0.8, ink, "center");
};
const paintRanks = (c, v) => {
  const right = v.left + v.rows * v.w, bottom = v.top + v.heads * v.h,
        every = v.heads <= 16 ? 1 : Math.ceil(v.heads / 8);
  for (let y = 0; y < v.heads; y += every)
    write(c, `head ${y * v.heat.heads}`, 4, v.top + (y + 0.5) * v.h, 11, colour("--ink"));
  for (let r = 0; r < ranks; r++) {
    const x = v.left + r * rowsPerRank() / v.heat.rows * v.w;
    const y = v.top + r * config.q_heads / ranks / v.heat.heads * v.h;
    if (x < right) write(c, `rank ${r}`, x + 3, 10, 11, colour("--ink"));
    if (r > 0 && x < right) fill(c, x - 1, 4, 2, bottom - 2, colour("--ink"));
    if (r > 0) fill(c, v.left, y - 1, right - v.left, 2, colour("--ink"));
  }
};
chart("heat", width => {
  const v = heatView(width), cells = heatCells(v);
  return {
    cells,
    height: v.top + v.heads * v.h + 6,
    label: heatSummary(v, cells),
    paint: c => {
      for (const cell of cells) paintHeat(c, v, cell);
      paintRanks(c, v);
    }
  };
});
lazyTable("heat-table", () => {
  const f = forward(), heat = f.heat[heatName()], columns = heatColumns(heat), rows = [];
  for (let i = 0; i * columns < heat.levels.length && i < 1000; i++) {
    const levels = Array.from(heat.levels.slice(i * columns, (i + 1) * columns), levelOf), worst = Math.max(...levels);
    rows.push([
      range(i * heat.rows, Math.min(heat.rows, f.rows - i * heat.rows)),
      i * heat.rows >= f.seq_len ? "padding" : "token",
      isNoted(i * heat.rows) ? 0 : levels.filter(level => level > TOLERANCE).length,
      range(levels.indexOf(worst) * heat.heads, heat.heads), times(worst)
    ]);
  }
  return table(["rows", "of", "wrong cells", "worst head", "largest error"], rows);
});
const heatChoice = () => {
  const names = ["recorded", "replayed"].filter(name => forward().heat[name]);
  $("heat-choice").replaceChildren(...names.map(name => {
    const input = Object.assign(
        document.createElement("input"), {type: "radio", name: "heat", value: name, checked: name === heatName()});
    input.addEventListener("change", () => {
      map = name;
      refresh();
      $("heat-choice").querySelector(`[value=${name}]`).focus();
    });
    return make(
        "label", null, input, name === "recorded" ? "recorded output (the model's)" : "replayed output (ckv's)");
  }));
};
