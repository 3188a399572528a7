# SPDX-License-Identifier: Apache-2.0
"""Traces for the tests of `ckv report`: a small model, in lists, with a mistake to find."""
import math
import os
import random
import sys
from array import array

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from trace import Trace  # noqa: E402

HEADS, DIM = 4, 8


def attend(query, keys):
    """One head; keys are (K, V) of that head."""
    scores = [sum(a * b for a, b in zip(query, key)) / math.sqrt(DIM) for key, _ in keys]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    return [sum(w * value[i] for w, (_, value) in zip(weights, keys)) / total for i in range(DIM)]


def pack(rows):
    return array("f", (x for row in rows for head in row for x in head)).tobytes()


class Model:
    """Chunks over a pinned prompt and a window. `mistake(model, chunk, start)` may change the keys that a block reads."""

    def __init__(self, page, pin, window, chunk, sizes, seed=1):
        self.random, self.pin, self.window, self.chunk = random.Random(seed), pin, window, chunk
        self.history = []
        self.trace = Trace(layers=1, q_heads=HEADS, kv_heads=HEADS, head_dim=DIM, dtype="fp32", tokens_per_page=page)
        self.trace.op("open", pin_tokens=pin, window_tokens=window, max_staged_tokens=chunk, causal_block_sizes=sizes)
        if pin:
            prompt = list(zip(self.vectors(pin), self.vectors(pin)))
            self.trace.write_range(0, 0, pack(k for k, _ in prompt), pack(v for _, v in prompt))
            self.trace.op("commit", tokens=pin)
            self.history = prompt

    def vectors(self, rows):
        draw = self.random.uniform
        return [[[draw(-1, 1) for _ in range(DIM)] for _ in range(HEADS)] for _ in range(rows)]

    def seen(self, start):
        """Tokens before a block, by id."""
        return [i for i in range(start) if i < self.pin or i >= start - self.window]

    def forward(self, block, padding=1, mistake=None, with_expected=True):
        """A forward over the next chunk; commit() keeps its tokens."""
        rows = self.chunk + padding
        q, k, v = self.vectors(rows), self.vectors(rows), self.vectors(rows)
        tokens, committed = self.history + list(zip(k, v)), len(self.history)
        out = []
        for first in range(0, self.chunk if with_expected else 0, block):
            keys = self.seen(committed + first) + list(range(committed + first, committed + first + block))
            keys = mistake(committed + first, keys) if mistake else keys
            for row in range(first, first + block):
                out.append([attend(q[row][h], [(tokens[i][0][h], tokens[i][1][h]) for i in keys]) for h in range(HEADS)])
        out += [[[0.0] * DIM] * HEADS] * padding
        self.staged = list(zip(k, v))[:self.chunk]
        self.trace.forward(0, self.chunk, block, pack(q), pack(k), pack(v), pack(out) if with_expected else None)

    def commit(self):
        self.history = self.history + self.staged
        self.trace.op("commit", tokens=self.chunk)


def blocks(path):
    """Pinned prompt, two blockings, padding on two ranks; in forward 9 the window of two of three blocks starts on a page."""
    model = Model(page=4, pin=5, window=13, chunk=9, sizes=[9, 3])

    def page_start(start, keys):
        first = start - 13 - (start - 13) % 4
        return sorted(set(keys) | set(range(max(first, 5), start)))

    for chunk in range(6):
        model.forward(9)
        model.forward(3, mistake=page_start if chunk == 4 else None)
        model.commit()
    model.trace.op("close")
    model.trace.save(path)


def thousand_pages(path, chunks=40):
    """A pool of about 1,000 pages, nine in ten of them resident; the last forward reads its padding row."""
    model = Model(page=4, pin=2800, window=1000, chunk=33, sizes=[33, 3])
    for chunk in range(chunks):
        model.forward(33, with_expected=False)
        is_last = chunk == chunks - 1
        model.forward(3, with_expected=is_last, mistake=lambda _, keys: keys + [len(model.history) + 33])
        model.commit()
    model.trace.save(path)


def hostile(path):
    """Names that try to get out of the page."""
    model = Model(page=4, pin=0, window=8, chunk=3, sizes=[3])
    model.forward(3)
    name = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>&\"'\u2028\u202e"
    model.trace.ops[1]["tensor"] = name
    model.trace.tensors = {name + key[key.rindex("."):]: value for key, value in model.trace.tensors.items()}
    model.trace.save(path)


if __name__ == "__main__":
    {"blocks": blocks, "thousand_pages": thousand_pages, "hostile": hostile}[sys.argv[1]](sys.argv[2])
