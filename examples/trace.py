# SPDX-License-Identifier: Apache-2.0
"""Write a trace for `ckv replay`: python3 trace.py TRACE.safetensors [--leak]

Trace records a model's calls with nothing but the standard library; docs/FORMATS.md has the format. The rollout below stands
in for a model: chunks of 11 tokens, padded to 12 rows so that they shard evenly. With --leak its attention reads the padding
row of the first chunk, and `ckv replay` says so.
"""
import json
import math
import random
import struct
import sys
from array import array


class Trace:
    """Tensors are bytes, dense and little-endian: `t.contiguous().view(torch.uint8).cpu().numpy().tobytes()`."""

    DTYPES = {"fp32": ("F32", 4), "bf16": ("BF16", 2), "fp16": ("F16", 2)}

    def __init__(self, **config):  # layers, q_heads, kv_heads, head_dim, dtype, tokens_per_page; scale is optional
        self.config, self.ops, self.tensors = config, [], {}

    def op(self, name, **fields):  # open, zero_values, commit, close
        self.ops.append({"op": name, **fields})

    def write_range(self, layer, start, k, v):
        self.op("write_range", layer=layer, start=start, tensor=self._add(k=k, v=v))

    def forward(self, layer, seq_len, causal_block_size, q, k, v, expected=None):
        tensor = self._add(q=q, k=k, v=v, **({} if expected is None else {"expected": expected}))
        self.op("forward", layer=layer, tensor=tensor, seq_len=seq_len, causal_block_size=causal_block_size)

    def _add(self, **tensors):
        name = f"t{len(self.ops)}"
        for suffix, data in tensors.items():
            heads = self.config["kv_heads" if suffix in "kv" else "q_heads"]
            self.tensors[f"{name}.{suffix}"] = (heads, data)
        return name

    def save(self, path):
        dtype, size = self.DTYPES[self.config["dtype"]]
        dim, end = self.config["head_dim"], 0
        header = {"__metadata__": {"ckv_trace": "1", "config": json.dumps(self.config), "ops": json.dumps(self.ops)}}
        for name, (heads, data) in self.tensors.items():
            tokens = len(data) // (heads * dim * size)
            header[name] = {"dtype": dtype, "shape": [tokens, heads, dim], "data_offsets": [end, end + len(data)]}
            end += len(data)
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.writelines(data for _, data in self.tensors.values())


HEADS, DIM, TOKENS, ROWS, WINDOW, CHUNKS = 6, 16, 11, 12, 22, 4


def attend(query, keys, values):
    """One head vector; keys and values are lists of head vectors."""
    scores = [sum(a * b for a, b in zip(query, key)) / math.sqrt(DIM) for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [sum(w * value[i] for w, value in zip(weights, values)) / sum(weights) for i in range(DIM)]


def main(path, leak):
    random.seed(1)
    trace = Trace(layers=1, q_heads=HEADS, kv_heads=HEADS, head_dim=DIM, dtype="fp32", tokens_per_page=4)
    trace.op("open", pin_tokens=0, window_tokens=WINDOW, max_staged_tokens=TOKENS, causal_block_sizes=[TOKENS])
    history = []  # of finished tokens: (K, V), [HEADS][DIM] each
    for chunk in range(CHUNKS):
        q, k, v = ([[[random.uniform(-1, 1) for _ in range(DIM)] for _ in range(HEADS)] for _ in range(ROWS)]
                   for _ in range(3))
        rows = list(zip(k, v))
        seen = history[-WINDOW:] + rows[:ROWS if leak and chunk == 0 else TOKENS]
        out = [[attend(q[t][h], [key[h] for key, _ in seen], [value[h] for _, value in seen]) for h in range(HEADS)]
               for t in range(TOKENS)] + [[[0.0] * DIM] * HEADS] * (ROWS - TOKENS)
        q, k, v, out = (array("f", (x for row in tensor for head in row for x in head)).tobytes()
                        for tensor in (q, k, v, out))
        trace.forward(0, TOKENS, TOKENS, q, k, v, expected=out)
        trace.op("commit", tokens=TOKENS)
        history += rows[:TOKENS]
    trace.op("close")
    trace.save(path)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--leak"]):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:] == ["--leak"])
