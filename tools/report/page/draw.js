// SPDX-License-Identifier: Apache-2.0
// Colours and patterns. A kind of page is a colour, a letter and, where it matters, a pattern.
const KINDS = {
  pinned: {letter: "P", ink: "--on-dark", says: "pinned: seen by every block"},
  history: {letter: "H", ink: "--on-light", says: "history: committed, in the window"},
  stale: {letter: "X", ink: "--on-light", pattern: "stripes", says: "stale: older than every window, not dropped yet"},
  staged: {letter: "S", ink: "--on-light", says: "staged: of this forward"},
  private: {letter: "V", ink: "--on-light", pattern: "dots", says: "private copies of one block"},
  guard: {letter: "G", ink: "--on-light", pattern: "cross", says: "guard: unused table entries"},
  empty: {letter: "", ink: "--ink", says: "no token"},
};
let style = getComputedStyle(document.documentElement);
const colour = name => style.getPropertyValue(name).trim();
const PATTERNS = {
  stripes: (c, n) => {
    for (let i = -n; i < 2 * n; i += 4) {
      c.moveTo(i, n);
      c.lineTo(i + n, 0);
    }
  },
  cross: (c, n) => {
    PATTERNS.stripes(c, n);
    for (let i = -n; i < 2 * n; i += 4) {
      c.moveTo(i, 0);
      c.lineTo(i + n, n);
    }
  },
  dots: (c, n) => {
    for (let x = 2; x < n; x += 4)
      for (let y = 2; y < n; y += 4) {
        c.moveTo(x - 0.7, y);
        c.lineTo(x + 0.7, y);
      }
  },
};
let patterns = new Map();
const pattern = (c, name, ink) => {
  const key = name + ink;
  if (!patterns.has(key)) {
    const tile = document.createElement("canvas"), n = 12;
    tile.width = tile.height = n;
    const t = tile.getContext("2d");
    t.strokeStyle = ink;
    t.lineWidth = name === "dots" ? 1.4 : 1;
    t.beginPath();
    PATTERNS[name](t, n);
    t.stroke();
    patterns.set(key, c.createPattern(tile, "repeat"));
  }
  return patterns.get(key);
};
const fill = (c, x, y, w, h, paint, hatch, ink) => {
  c.fillStyle = paint;
  c.fillRect(x, y, w, h);
  if (!hatch) return;
  c.globalAlpha = 0.55;
  c.fillStyle = pattern(c, hatch, ink);
  c.fillRect(x, y, w, h);
  c.globalAlpha = 1;
};
const fillKind = (c, kind, x, y, w, h) =>
    fill(c, x, y, w, h, colour(`--${kind}`), KINDS[kind].pattern, colour(KINDS[kind].ink));
const write = (c, text, x, y, size, ink, align = "left") => {
  c.font = `${size}px system-ui, "DejaVu Sans", sans-serif`;
  c.textAlign = align;
  c.textBaseline = "middle";
  c.fillStyle = ink;
  c.fillText(text, x, y);
};
// On a pattern: letters with a rim of the colour below.
const writeOn = (c, text, x, y, size, ink, rim, align) => {
  c.font = `bold ${size}px system-ui, "DejaVu Sans", sans-serif`;
  c.textAlign = align;
  c.textBaseline = "middle";
  c.lineJoin = "round";
  c.lineWidth = 4;
  c.strokeStyle = rim;
  c.strokeText(text, x, y);
  c.fillStyle = ink;
  c.fillText(text, x, y);
};
const box = (c, x, y, w, h, ink, width = 1) => {
  c.strokeStyle = ink;
  c.lineWidth = width;
  c.strokeRect(x + width / 2, y + width / 2, w - width, h - width);
};
const legends = [];
const legend = (id, entries) => legends.push(() => {
  $(id).replaceChildren(...entries.map(([paint, text]) => {
    const swatch = document.createElement("canvas"), scale = 2;
    swatch.width = 22 * scale;
    swatch.height = 16 * scale;
    swatch.setAttribute("aria-hidden", "true");
    const c = swatch.getContext("2d");
    c.scale(scale, scale);
    paint(c);
    return make("span", null, swatch, text);
  }));
});
