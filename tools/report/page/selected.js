// SPDX-License-Identifier: Apache-2.0
// What is selected, and what is known of the keys that its blocks read.
const forward = () => forwards[at];
const state = () => data.states[forward().state];
const layout = () => data.layouts[forward().layout];
const rollout = () => data.rollouts[state().rollout];
const shown = new Map(forwards.map((f, i) => [f.n, i]));
const rowsPerRank = () => ranks === 1 ? forward().rows : Math.ceil(forward().seq_len / ranks);
const levelOf = letter => LEVELS.indexOf(letter);
const heatColumns = heat => Math.ceil(config.q_heads / heat.heads);
const worstOfRows = (heat, first, count) => {
  const columns = heatColumns(heat), from = Math.floor(first / heat.rows) * columns;
  const end = Math.min((Math.floor((first + count - 1) / heat.rows) + 1) * columns, heat.levels.length);
  let worst = 0;
  for (let i = from; i < end; i++) worst = Math.max(worst, levelOf(heat.levels[i]));
  return worst;
};

const spread = runs => {
  const pairs = [];
  for (let i = 0; i < runs.length; i += 2) pairs.push([runs[i], runs[i + 1]]);
  return pairs;
};
// What is in the runs of `a` and not in those of `b`.
const without = (a, b) => b.reduce(
    (rest, [first, count]) => rest.flatMap(([start, length]) => {
      const end = start + length, after = Math.max(start, first + count);
      return [[start, Math.min(end, first) - start], [after, end - after]].filter(run => run[1] > 0);
    }),
    a);

// What is known of the keys that a block read: {source, extra, missing}; extra is null where nothing is.
const reading = entry => {
  const f = forward(), size = layout().block_size, explained = f.explained;
  const found = explained && explained.blocks.find(b => b.block === entry[0] && !b.is_padding);
  if (found && !found.class)
    return {
      extra: null,
      brief: "cannot be told from the output",
      source: "its output is wrong and no known mistake fits: which keys were read cannot be told"
    };
  if (found && !found.extra.length && !found.missing.length)
    return {
      extra: [],
      missing: [],
      source: `these keys, but the output is not the row's own: ${found.class}: ${found.what}`
    };
  if (found)
    return {
      extra: found.extra,
      missing: found.missing,
      source: `inferred from the ${explained.output} output: ${found.class}`
    };
  if (explained && worstOfRows(f.heat[explained.output], entry[0] * size, size) > TOLERANCE)
    return {
      extra: null,
      brief: "wrong, not analysed here",
      source: "its output is wrong and was not analysed here: ckv explain does it for a row"
    };
  const expected = spread(entry[1]), read = spread(entry[2]);
  const keys = runs =>
      runs.map(([first, count]) => ({padding: false, first, count, times: 1, forward: -1, rank: -1, before: first}));
  return {
    extra: keys(without(read, expected)),
    missing: keys(without(expected, read)),
    source: f.recorded ? "decoded from the cache; the recorded output agrees" :
                         "decoded from the cache; the replayed output agrees"
  };
};
