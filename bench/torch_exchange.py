# SPDX-License-Identifier: Apache-2.0
"""What models do today: the exchange of `ckv bench exchange` with torch, permutes and all_to_all_single.

    python3 bench/torch_exchange.py [--json FILE] [TOKENS...]      one process a GPU, started by itself

FILE is as `ckv bench --json` writes it.
"""
import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Q_HEADS, KV_HEADS, HEAD_DIM, GRAPH, REPEATS = 32, 8, 128, 20, 20


def there(tensors, ranks):
    """[rows, heads, dim] of a rank -> [ranks * rows, heads / ranks, dim]; q and the stacked k, v, as head counts differ."""
    for x in tensors:
        rows, heads, dim = x.shape
        cut = x.view(rows, ranks, heads // ranks, dim).transpose(0, 1).contiguous()
        dist.all_to_all_single(torch.empty_like(cut), cut)


def back(x, ranks):
    """[ranks * rows, heads, dim] -> [rows, ranks * heads, dim]"""
    total, heads, dim = x.shape
    got = torch.empty_like(x)
    dist.all_to_all_single(got, x)
    got.view(ranks, total // ranks, heads, dim).transpose(0, 1).contiguous()


def measure(work):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(GRAPH):
            work()
    times = []
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for i in range(REPEATS + 3):
        dist.barrier()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end) * 1e3 / GRAPH], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if i >= 3:
            times.append(slowest.item())
    return sorted(times)


def main(rank, ranks, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29581")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    rows = []
    for tokens in options.tokens:
        count = -(-tokens // ranks)
        q = torch.randn(count, Q_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        kv = torch.randn(count, 2 * KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        out = torch.randn(count * ranks, Q_HEADS // ranks, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        for way, heads, work in (
            ("there", Q_HEADS + 2 * KV_HEADS, lambda q=q, kv=kv: there((q, kv), ranks)),
            ("back", Q_HEADS, lambda out=out: back(out, ranks)),
        ):
            us = measure(work)
            row = {
                "group": f"exchange, {way}",
                "variant": "torch, permutes and all_to_all_single",
                "params": f"tokens {tokens}, {ranks} ranks, nccl",
                "x_name": "tokens over all ranks",
                "x": tokens,
                "min_us": us[0],
                "median_us": us[REPEATS // 2],
                "max_us": us[-1],
                "bytes": count * heads * HEAD_DIM * 2 * (ranks - 1) // ranks,
            }
            rows.append(row)
            if rank == 0:
                print(f"{row['group']}, {row['params']}: {row['median_us']:.2f} us", flush=True)
    dist.destroy_process_group()
    if rank == 0 and options.json:
        facts = {
            "device": torch.cuda.get_device_name(),
            "command": f"python3 bench/torch_exchange.py {' '.join(str(x) for x in options.tokens)}",
            "geometry": f"{Q_HEADS}/{KV_HEADS} heads of {HEAD_DIM}, bf16",
            "each time": f"of one exchange of {GRAPH} in a graph, the slowest rank's; {REPEATS} launches",
            "torch": f"{torch.__version__}, NCCL {'.'.join(str(x) for x in torch.cuda.nccl.version())}",
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"facts": facts, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("tokens", nargs="*", type=int, default=[1, 64, 394, 1576, 6304, 37824, 65536])
    arguments = parser.parse_args()
    gpus = torch.cuda.device_count()
    mp.spawn(main, args=(gpus, arguments), nprocs=gpus)
