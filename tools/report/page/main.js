// SPDX-License-Identifier: Apache-2.0
// The selection, and how it moves.
const describe = f => `forward ${f.n} of ${data.num_forwards}: layer ${f.layer}, tensor ${clean(f.tensor)}, ${
                          plural(f.seq_len, "token")} ` +
    `(padded ${f.padded}) in blocks of ${layout().block_size}, ${state().committed} committed before: ${f.verdict}`;
const refresh = () => {
  const f = forward(), blocks = layout().blocks;
  $("selected").textContent = describe(f);
  $("selected").className = f.verdict === "ok" ? "right-text" : "wrong-text";
  $("slider").value = at;
  $("slider").setAttribute("aria-valuetext", `forward ${f.n}`);
  $("previous").disabled = at === 0;
  $("next").disabled = at === forwards.length - 1;
  $("next-wrong").disabled = data.num_wrong === 0;
  $("block").replaceChildren(
      ...blocks.map((entry, i) => Object.assign(make("option", `${entry[0]}`), {value: i, selected: i === block})));
  explain();
  heatChoice();
  shardsTable();
  for (const draw of charts) draw();
  for (const build of tables) build();
  try {
    history.replaceState(null, "", `#forward=${f.n}&block=${blocks[block][0]}`);
  } catch (e) { /* a viewer without history */
  }
};
const select = index => {
  at = Math.min(Math.max(index, 0), forwards.length - 1);
  const e = forward().explained,
        worst = e && e.blocks[0] ? layout().blocks.findIndex(entry => entry[0] === e.blocks[0].block) : 0;
  block = Math.max(worst, 0);
  refresh();
};
const nextWrong = () => {
  for (let i = 1; i <= forwards.length; i++)
    if (forwards[(at + i) % forwards.length].verdict === "wrong") return select((at + i) % forwards.length);
};
const fromFragment = () => {
  const wanted = new URLSearchParams(location.hash.slice(1)), n = shown.get(Number(wanted.get("forward") ?? NaN));
  if (n === undefined) return false;
  select(n);
  const i = layout().blocks.findIndex(entry => entry[0] === Number(wanted.get("block") ?? NaN));
  if (i >= 0 && i !== block) {
    block = i;
    refresh();
  }
  return true;
};
const redraw = () => {
  style = getComputedStyle(document.documentElement);
  patterns = new Map();
  for (const paint of legends) paint();
  if (forwards.length)
    for (const draw of charts) draw();
};

const start = () => {
  $("pictures").hidden = false;
  $("slider").max = forwards.length - 1;
  $("slider").addEventListener("input", () => select(Number($("slider").value)));
  $("previous").addEventListener("click", () => select(at - 1));
  $("next").addEventListener("click", () => select(at + 1));
  $("next-wrong").addEventListener("click", nextWrong);
  $("block").addEventListener("change", () => {
    block = Number($("block").value);
    refresh();
  });
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName))
      return;
    const keys = {ArrowLeft: () => select(at - 1), ArrowRight: () => select(at + 1), w: nextWrong};
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  window.addEventListener("hashchange", fromFragment);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) {
      width = window.innerWidth;
      redraw();
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    redraw();
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    redraw();
  });
  for (const paint of legends) paint();
  if (!fromFragment()) select(Math.max(forwards.findIndex(f => f.verdict === "wrong"), 0));
};

$("name").textContent = clean(data.name);
if ($("all").querySelectorAll("tbody tr").length > 8) $("all").open = false;
if (forwards.length) start();
