// SPDX-License-Identifier: Apache-2.0
// The trace's ops in order, as lines of text are.
const LOOKS = {
  f: {paint: "--read", sign: "\u2713"},
  F: {paint: "--extra", sign: "\u2717"}
};
const paintForward = (c, letter, x, y, w, h) => {
  fill(c, x, y, w, h, colour(LOOKS[letter].paint));
  if (h > 8) write(c, LOOKS[letter].sign, x + w / 2, y + h / 2, h * 0.65, colour("--on-light"), "center");
};
const paintOther = (c, letter, x, y, w, h) => {
  box(c, x, y, w, h, colour("--faint"));
  if (h > 8) write(c, letter, x + w / 2, y + h / 2, h * 0.6, colour("--ink"), "center");
};
const paintCommit = (c, x, y, w, h) => fill(c, x + w * 0.35, y, Math.max(w * 0.3, 2), h, colour("--ink"));
legend("timeline-legend", [
  [c => paintForward(c, "f", 0, 0, 22, 16), "forward, right"],
  [c => paintForward(c, "F", 0, 0, 22, 16), "forward, wrong"],
  [c => paintCommit(c, 0, 0, 22, 16), "commit"],
  [c => paintOther(c, "o", 0, 0, 22, 16), "open, write, zero, close (o w z x)"],
]);

const opText = (i, index) => {
  const letter = data.timeline[i], n = data.numbers[i];
  if (LOOKS[letter]) {
    const where = index === undefined ? "left out to keep this page small" : `layer ${forwards[index].layer}`;
    return `op ${i}: forward ${n}, ${letter === "F" ? "wrong" : "right"}, ${where}`;
  }
  const what = {
    o: `open, rollout ${n}`,
    w: `write_range, ${plural(n, "token")}`,
    z: `zero_values, ${plural(n, "token")}`,
    c: `commit, ${plural(n, "token")}`,
    x: "close"
  };
  return `op ${i}: ${what[letter]}`;
};
const timelineSummary = () => {
  const commits = (data.timeline.match(/c/g) || []).length, missing = data.num_forwards - forwards.length;
  const wrong = data.num_wrong ? `${data.num_wrong} wrong` : "none wrong";
  const left = missing ? ` ${plural(missing, "forward")} (pale) left out to keep this page small.` : "";
  return `${plural(data.timeline.length, "op")}: ${plural(data.num_forwards, "forward")}, ${wrong}, ` +
      `${plural(commits, "commit")}.${left}`;
};
const paintOp = (c, {x, y, w, h, letter, index}) => {
  if (letter === "c") return paintCommit(c, x, y, w, h);
  if (!LOOKS[letter]) return paintOther(c, letter, x, y, w, h);
  c.globalAlpha = index === undefined ? 0.45 : 1;
  paintForward(c, letter, x, y, w, h);
  c.globalAlpha = 1;
  if (index === at) box(c, x - 3, y - 3, w + 6, h + 6, colour("--ink"), 2);
};
chart("timeline", width => {
  const ops = data.timeline, size = ops.length <= 240 ? 22 : ops.length <= 2400 ? 11 : 5;
  const step = size + (size > 8 ? 3 : 1), perLine = Math.max(Math.floor(width / step), 1);
  const cells = Array.from(ops, (letter, i) => {
    const index = LOOKS[letter] ? shown.get(data.numbers[i]) : undefined;
    const x = 3 + i % perLine * step, y = 3 + Math.floor(i / perLine) * step;
    const action = index === undefined ? null : () => select(index);
    return {x, y, w: size, h: size, letter, index, action, text: () => opText(i, index)};
  });
  return {
    cells,
    height: 6 + Math.ceil(ops.length / perLine) * step,
    label: timelineSummary(),
    paint: c => cells.forEach(cell => paintOp(c, cell))
  };
});
