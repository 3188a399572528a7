// SPDX-License-Identifier: Apache-2.0
// What every page holds.
// What cells hold at a state: the changes since the rollout began, played in order.
let held = {state: -1, rollout: -1, cells: []};
const holding = index => {
  const wanted = data.states[index].rollout;
  if (held.rollout !== wanted || held.state > index)
    held = {
      state: data.states.findIndex(s => s.rollout === wanted) - 1,
      rollout: wanted,
      cells: data.rollouts[wanted].cells.map(() => [])
    };
  while (held.state < index) {
    held.state++;
    for (const change of data.states[held.state].changed) {
      const runs = [];
      for (let i = 1; i < change.length; i += 3) runs.push({slot: change[i], id: change[i + 1], count: change[i + 2]});
      held.cells[change[0]] = runs;
    }
  }
  return held.cells;
};
// A run of ids of resident slots in parts of one kind each.
const kinds = run => {
  const s = state(), window = rollout().window_tokens, parts = [];
  const ends = [
    [s.fixed, "pinned"], [Math.max(s.committed - window, s.fixed), "stale"], [s.committed, "history"],
    [Infinity, "staged"]
  ];
  let id = run.id;
  for (const [end, kind] of ends) {
    const count = Math.min(run.id + run.count, end) - id;
    if (count <= 0) continue;
    parts.push({kind, slot: run.slot + id - run.id, id, count});
    id += count;
  }
  return parts;
};
const pageCells = () => {
  const geometry = rollout(), partsOf = holding(forward().state), read = spread(layout().blocks[block][3]);
  const all = geometry.cells.map(([first, pages, isPrivate], i) => {
    const parts = partsOf[i].flatMap(run => isPrivate ? [{kind: "private", ...run}] : kinds(run));
    const counts = {};
    for (const part of parts) counts[part.kind] = (counts[part.kind] || 0) + part.count;
    const kind = isPrivate ? "private" : Object.keys(counts).sort((a, b) => counts[b] - counts[a])[0] || "empty";
    return {
      first,
      pages,
      isPrivate: !!isPrivate,
      parts,
      kind,
      id: parts.length ? parts[0].id : Infinity,
      isRead: read.some(([from, count]) => first < from + count && from < first + pages)
    };
  });
  const resident = all.filter(p => !p.isPrivate).sort((a, b) => a.id - b.id || a.first - b.first);
  return [
    ["resident, in the order of their tokens", resident], ["private", all.filter(p => p.isPrivate)],
    ["guard", [{first: geometry.guard_page, pages: 1, parts: [], kind: "guard", isRead: false}]]
  ];
};
const pageHolds = p => {
  if (p.kind === "guard") return "guard: never read for its values, unused table entries name it";
  const parts = p.parts.map(({kind, id, count}) => {
    const name = kind === "private" ? "copies of" : kind;
    return `${name} token${count > 1 ? "s" : ""} ${range(id, count)}`;
  });
  return parts.join(", ") || (p.kind === "private" ? "private, not in use" : "no token");
};
const pageText = p => {
  const reader = p.isRead ? `; read by block ${layout().blocks[block][0]}` : "";
  return `page${p.pages > 1 ? "s" : ""} ${range(p.first, p.pages)}: ${pageHolds(p)}${reader}`;
};
const paintKind = (c, kind) => {
  fillKind(c, kind, 0, 0, 22, 16);
  writeOn(c, KINDS[kind].letter, 11, 8, 10, colour(KINDS[kind].ink), colour(`--${kind}`), "center");
};
const paintRead = c => {
  fillKind(c, "history", 0, 0, 22, 16);
  box(c, 0, 0, 22, 16, colour("--ink"), 3);
};
legend("pages-legend", [
  ...Object.entries(KINDS).map(([kind, look]) => [c => paintKind(c, kind), look.says]),
  [paintRead, "framed: read by the selected block"],
]);

const paintPage = (c, {x, y, w, h, page: p}) => {
  const isUsed = p.parts.length > 0 || p.kind === "guard", unit = w / (p.pages * P), look = KINDS[p.kind];
  fillKind(c, p.kind === "guard" ? "guard" : "empty", x, y, w, h);
  for (const part of p.parts) fillKind(c, part.kind, x + part.slot * unit, y, part.count * unit, h);
  c.globalAlpha = w > 30 ? 1 : 0.6;  // hundreds of frames would be all one sees
  if (p.isRead || w > 30 || !isUsed)
    box(c, x, y, w, h, colour(p.isRead ? "--ink" : "--line"), p.isRead && w > 30 ? 3 : 1);
  c.globalAlpha = 1;
  const name = w > 50 ? `${look.letter} ${range(p.first, p.pages)}` : look.letter, size = w > 30 ? 12 : 10;
  const ink = colour(isUsed ? look.ink : "--faint"), middle = [x + w / 2, y + h / 2 + 1];
  const tokens = p.parts.reduce((sum, part) => sum + part.count, 0), isPartly = tokens > 0 && tokens < p.pages * P;
  if (isUsed && (look.pattern || isPartly))
    writeOn(c, name, ...middle, size, ink, colour(`--${p.kind}`), "center");
  else
    write(c, name, ...middle, size, ink, "center");
};
const pagesSummary = cells => {
  const tally = {};
  for (const {page} of cells) tally[page.kind] = (tally[page.kind] || 0) + page.pages;
  const parts = Object.keys(KINDS).filter(kind => tally[kind]).map(kind => `${tally[kind]} ${kind}`);
  return `${parts.join(", ")} pages of ${plural(P, "token")}.`;
};
chart("pages", width => {
  const groups = pageCells().filter(group => group[1].length > 0), cells = [], titles = [];
  const count = groups.reduce((sum, group) => sum + group[1].length, 0);
  const [w, h] = count <= 72 ? [62, 30] : count <= 320 ? [34, 22] : [17, 17], gap = 3;
  const perLine = Math.max(Math.floor((width - 4) / (w + gap)), 1);
  let top = 0;
  for (const [title, pages] of groups) {
    titles.push([`${title}: ${pages.reduce((sum, p) => sum + p.pages, 0)}`, top + 9]);
    top += 20;
    pages.forEach((page, i) => {
      const x = 3 + i % perLine * (w + gap), y = top + Math.floor(i / perLine) * (h + gap);
      cells.push({x, y, w, h, page, text: () => pageText(page)});
    });
    top += Math.ceil(pages.length / perLine) * (h + gap) + 5;
  }
  return {
    cells,
    height: top,
    label: pagesSummary(cells),
    paint: c => {
      for (const [title, middle] of titles) write(c, title, 3, middle, 12, colour("--faint"));
      for (const cell of cells) paintPage(c, cell);
    }
  };
});
lazyTable("pages-table", () => {
  const pages = pageCells().flatMap(group => group[1]);
  return table(
      ["pages", "kind", "holds", "read by the selected block"],
      pages.map(p => [range(p.first, p.pages), p.kind, pageHolds(p), p.isRead ? "yes" : "no"]));
});
