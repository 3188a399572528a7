// SPDX-License-Identifier: Apache-2.0
// Who holds which rows and heads.
legend("shards-legend", [
  [c => fill(c, 0, 0, 22, 16, colour("--history")), "tokens"],
  [c => fill(c, 0, 0, 22, 16, colour("--stale"), "stripes", colour("--on-light")), "padding rows of the trace"],
  [c => fill(c, 0, 0, 22, 16, colour("--guard"), "cross", colour("--on-light")), "padding rows that replay adds (NaN)"],
]);
const shards = () => {
  const f = forward(), rows = rowsPerRank(), heads = config.q_heads / ranks, group = config.q_heads / config.kv_heads;
  return Array.from({length: ranks}, (_, rank) => {
    const first = rank * rows, real = Math.min(Math.max(f.seq_len - first, 0), rows),
          there = Math.min(Math.max(f.rows - first, 0), rows);
    const firstKv = Math.floor(rank * heads / group), lastKv = Math.floor(((rank + 1) * heads - 1) / group);
    return {
      rank,
      first,
      rows,
      real,
      padding: rows - real,
      added: rows - Math.max(there, real),
      heads: range(rank * heads, heads),
      kv: range(firstKv, lastKv - firstKv + 1)
    };
  });
};
const shardText = s => {
  const added = s.added ? ` (${s.added} added by replay)` : "";
  return `rank ${s.rank}: rows ${range(s.first, s.rows)}, ${plural(s.real, "token")}, ` +
      `${plural(s.padding, "padding row")}${added}; query heads ${s.heads}, K/V heads ${s.kv}`;
};
const shardsSummary = () => {
  const f = forward(), rows = rowsPerRank() * ranks;
  const surplus = f.rows > rows ? `; ${f.rows - rows} more in the trace are nobody's` : "";
  return `${plural(f.seq_len, "token")} on ${plural(ranks, "rank")}, ${plural(rowsPerRank(), "row")} each: ` +
      `${plural(rows - f.seq_len, "padding row")}${surplus}.`;
};
const paintShard = (c, s, {x, y, h}, unit) => {
  const real = s.real * unit, there = (s.padding - s.added) * unit, added = s.added * unit;
  write(c, `rank ${s.rank}`, 4, y + h / 2, 12, colour("--ink"));
  fill(c, x, y, real, h, colour("--history"));
  fill(c, x + real, y, there, h, colour("--stale"), "stripes", colour("--on-light"));
  fill(c, x + real + there, y, added, h, colour("--guard"), "cross", colour("--on-light"));
  box(c, x, y, s.rows * unit, h, colour("--ink"));
  if (h > 16 && real > 80) write(c, `rows ${range(s.first, s.rows)}`, x + 6, y + h / 2, 12, colour("--on-light"));
};
chart("shards", width => {
  const all = shards(), left = 74, h = ranks > 16 ? 12 : 22, padded = forward().padded;
  const unit = (width - left - 4) / Math.max(padded, 1);
  const cells = all.map(s => {
    const x = left + s.first * unit, y = 4 + s.rank * (h + 4), w = Math.max(s.rows * unit, 4);
    return {x, y, w, h, text: () => shardText(s)};
  });
  return {
    cells,
    height: 8 + ranks * (h + 4),
    label: shardsSummary(),
    paint: c => all.forEach((s, i) => {
      fill(c, left, cells[i].y, padded * unit, h, colour("--empty"));
      paintShard(c, s, cells[i], unit);
    })
  };
});
const worstOfRank = (heat, rank) => {
  const columns = heatColumns(heat), rows = Math.ceil(forward().seq_len / heat.rows);
  let worst = 0;
  for (let i = 0; i < rows * columns; i++)
    if (Math.floor(i % columns * heat.heads * ranks / config.q_heads) === rank)
      worst = Math.max(worst, levelOf(heat.levels[i]));
  return worst;
};
const shardsTable = () => {
  const heat = forward().heat[heatName()];
  const titles =
      ["rank", "rows", "tokens", "padding rows", "of these added", "query heads", "K/V heads", "worst on its heads"];
  $("shards-table")
      .replaceChildren(table(
          titles,
          shards().map(
              s =>
                  [s.rank, range(s.first, s.rows), s.real, s.padding, s.added, s.heads, s.kv,
                   times(worstOfRank(heat, s.rank))])));
};
