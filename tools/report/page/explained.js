// SPDX-License-Identifier: Apache-2.0
const facts = pairs => {
  const list = make("dl", null);
  list.className = "facts";
  for (const [name, value] of pairs) list.append(make("dt", name), make("dd", value));
  return list;
};
const explain = () => {
  const f = forward(), e = f.explained, parts = [], worst = e && e.blocks[0];
  const off = (name, d) => d ?
      `off by ${number(d.error)} at row ${d.row} head ${d.head} channel ${d.channel} (rank ${d.rank}): ` +
          `${d.observed} instead of ${d.wanted}` :
      "none";
  const verdict = !e ?
      `right: the ${
          f.recorded ? "recorded and the replayed output agree" : "replayed output agrees"} with the exact window` :
      e.refused ? `wrong; not explained: ${clean(e.refused)}` :
      worst.class ? `${worst.class}: ${worst.what}` :
                    "wrong, and no known mistake fits";
  const headline = make("p", null, make("strong", verdict));
  headline.className = e ? "wrong-text" : "right-text";
  headline.id = "headline";
  parts.push(headline);
  const pairs = [
    ["recorded output", f.recorded ? off("recorded", f.recorded) : "none in the trace"],
    ["replayed output", off("replayed", f.replayed)], ["tolerance", number(f.tolerance)]
  ];
  if (f.padding)
    pairs.push([
      "padding rows",
      `of the recorded output are not zero (${number(f.padding.error)} in row ${
          f.padding.row}): no mistake where they are dropped`
    ]);
  if (worst) {
    pairs.push([
      "worst row",
      `row ${worst.row}${worst.is_padding ? " (padding)" : `, block ${worst.block}`}: off by ${
          number(worst.error)} at head ` +
          `${worst.head} (rank ${worst.rank}); ${
              worst.class ? `${number(worst.residual)} is left with this mistake` : "no mistake leaves little enough"}`
    ]);
    if (worst.class && worst.extra.length) pairs.push(["read, but should not", keysText(worst.extra)]);
    if (worst.class && worst.missing.length) pairs.push(["should, but not read", keysText(worst.missing)]);
  }
  parts.push(facts(pairs));
  if (e && e.text)
    parts.push(make("p", `ckv explain --forward ${f.n} --row ${worst.row} --ranks ${ranks}:`), make("pre", e.text));
  $("explained").replaceChildren(...parts);
};
