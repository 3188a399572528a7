# SPDX-License-Identifier: Apache-2.0
"""Record a small causal video transformer: python3 record.py OUT [--ranks N] [--shard heads|tokens] [--bug]

The model makes chunks of 11 tokens, in two denoising steps each, after a prompt of 3; random weights, PyTorch on CPUs. Chunks
are padded to 12 rows so that they shard evenly. One rank writes a trace for `ckv replay`, OUT; N ranks shard the model by
Ulysses over gloo, write their parts OUT.0, OUT.1, ... and `python3 -m ckv_recorder merge OUT OUT.0 OUT.1 ...` makes them one.
--shard says which attention call is recorded: inside Ulysses (all tokens, a rank's heads), or around it. With --bug the model
forgets the padding of its first chunk: attention reads its keys there. Needs tools/python in PYTHONPATH.
"""
import argparse
import os
import sys
import tempfile
from typing import Callable, List, Tuple

try:
    import torch
    from ckv_recorder import Recorder
except ImportError as error:
    sys.exit(f"{error}: this needs torch, safetensors and tools/python in PYTHONPATH; examples/trace.py needs nothing")
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.functional import layer_norm, pad, scaled_dot_product_attention

LAYERS, Q_HEADS, KV_HEADS, DIM, WIDTH = 2, 4, 2, 16, 64
PROMPT, TOKENS, WINDOW, CHUNKS, STEPS = 3, 11, 22, 4, 2


class Cache:
    """K and V of this rank's heads, a pair a layer: the prompt, a sliding window of finished tokens, and the chunk."""

    def open(self) -> None:
        self.kept: List[Tuple[torch.Tensor, torch.Tensor]] = [()] * LAYERS
        self.staged: List[Tuple[torch.Tensor, torch.Tensor]] = [()] * LAYERS
        self.is_first_chunk = True

    def write_prompt(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self.kept[layer] = k, v

    def visible(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> List[torch.Tensor]:
        self.staged[layer] = k, v
        return [torch.cat(pair) for pair in zip(self.kept[layer], (k, v))]

    def commit(self, tokens: int) -> None:
        for layer in range(LAYERS):
            rows = [torch.cat([kept, new[:tokens]]) for kept, new in zip(self.kept[layer], self.staged[layer])]
            self.kept[layer] = tuple(torch.cat([row[:PROMPT], row[PROMPT:][-WINDOW:]]) for row in rows)
        self.is_first_chunk = False


class Model:
    def __init__(self, ranks: int, bug: bool) -> None:
        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns) / rows**0.5

        self.ranks, self.bug, self.cache = ranks, bug, Cache()
        self.qkv = [weight(WIDTH, (Q_HEADS + 2 * KV_HEADS) * DIM) for _ in range(LAYERS)]
        self.out = [weight(Q_HEADS * DIM, WIDTH) for _ in range(LAYERS)]
        self.mlp = [(weight(WIDTH, 4 * WIDTH), weight(4 * WIDTH, WIDTH)) for _ in range(LAYERS)]
        # Attention of each layer: inside Ulysses, and around it. A recorder wraps one of them.
        self.attend = [self.attend_layer(layer) for layer in range(LAYERS)]
        self.ulysses = [self.ulysses_layer(layer) for layer in range(LAYERS)]

    def attend_layer(self, layer: int) -> Callable[..., torch.Tensor]:
        """[rows, heads of this rank, DIM] of all ranks' tokens."""

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            tokens = len(k) if self.bug and self.cache.is_first_chunk else TOKENS
            k, v = self.cache.visible(layer, k[:tokens], v[:tokens])
            q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
            k, v = (tensor.repeat_interleave(Q_HEADS // KV_HEADS, dim=0) for tensor in (k, v))
            return scaled_dot_product_attention(q, k, v).transpose(0, 1)

        return attend

    def ulysses_layer(self, layer: int) -> Callable[..., torch.Tensor]:
        """[rows of this rank, all heads, DIM]."""

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = self.attend[layer](*(self.exchange(tensor, self.ranks) for tensor in (q, k, v)))
            return self.exchange(out, 1)

        return attend

    def exchange(self, tensor: torch.Tensor, head_groups: int) -> torch.Tensor:
        """Tokens for heads among the ranks when head_groups is their number, back when it is 1."""
        if self.ranks == 1:
            return tensor
        sends = tensor.view(self.ranks // head_groups, -1, head_groups, tensor.shape[1] // head_groups, DIM)
        sends = sends.transpose(1, 2).contiguous().flatten(0, 1)  # [to rank, tokens, heads, DIM]
        received = torch.empty_like(sends)
        dist.all_to_all_single(received, sends)
        received = received.view(head_groups, self.ranks // head_groups, *sends.shape[1:])
        return received.transpose(1, 2).reshape(head_groups * sends.shape[1], -1, DIM)

    def denoise(self, x: torch.Tensor) -> torch.Tensor:
        for layer in range(LAYERS):
            heads = (layer_norm(x, [WIDTH]) @ self.qkv[layer]).view(len(x), -1, DIM)
            q, k, v = heads.split([Q_HEADS, KV_HEADS, KV_HEADS], dim=1)
            x = x + self.ulysses[layer](q, k, v).flatten(1) @ self.out[layer]
            up, down = self.mlp[layer]
            x = x + (layer_norm(x, [WIDTH]) @ up).relu() @ down
        return x


def record(model: Model, rank: int, ranks: int, shard: str) -> Recorder:
    recorder = Recorder(layers=LAYERS, q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=DIM, dtype=torch.float32,
                        tokens_per_page=4, rank=rank, ranks=ranks)
    cache = model.cache
    cache.open = recorder.cache_call("open", cache.open, lambda: {
        "pin_tokens": PROMPT, "window_tokens": WINDOW, "max_staged_tokens": TOKENS, "causal_block_sizes": [TOKENS]})
    cache.write_prompt = recorder.cache_call("write_range", cache.write_prompt, lambda layer, k, v: {
        "layer": layer, "start": 0, "k": k, "v": v})
    cache.commit = recorder.cache_call("commit", cache.commit, lambda tokens: {"tokens": tokens})
    calls = model.attend if shard == "heads" else model.ulysses
    calls[:] = [recorder.attention(call, layer, shard=shard) for layer, call in enumerate(calls)]
    return recorder


def rollout(model: Model, recorder: Recorder, rank: int, ranks: int) -> None:
    model.cache.open()
    heads = slice(rank * KV_HEADS // ranks, (rank + 1) * KV_HEADS // ranks)
    for layer in range(LAYERS):  # what a text encoder would have made
        model.cache.write_prompt(layer, *(torch.randn(PROMPT, KV_HEADS, DIM)[:, heads] for _ in range(2)))
    recorder.op("commit", tokens=PROMPT)  # this model has no such call: its prompt is final when it is written
    rows = -(-TOKENS // 2) * 2  # as for 2 ranks, on one too
    for _ in range(CHUNKS):
        recorder.chunk(seq_len=TOKENS)
        x = pad(torch.randn(TOKENS, WIDTH), (0, 0, 0, rows - TOKENS))  # the same on every rank
        x = x[rank * rows // ranks:(rank + 1) * rows // ranks]
        for _ in range(STEPS):
            x = model.denoise(x)
        model.cache.commit(TOKENS)
    recorder.op("close")


def run(rank: int, store: str, arguments: argparse.Namespace) -> None:
    ranks = arguments.ranks
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model = Model(ranks, arguments.bug)
    recorder = record(model, rank, ranks, arguments.shard)
    with torch.no_grad():
        rollout(model, recorder, rank, ranks)
    recorder.save(arguments.out if ranks == 1 else f"{arguments.out}.{rank}")
    if ranks > 1:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.add_argument("--shard", choices=("heads", "tokens"), default="heads")
    parser.add_argument("--bug", action="store_true")
    arguments = parser.parse_args()
    if arguments.ranks == 1:
        run(0, "", arguments)
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run, (os.path.join(folder, "store"), arguments), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
