# SPDX-License-Identifier: Apache-2.0
"""What models do today: the exchange of bench/exchange_bench.c with torch, permutes and all_to_all_single.

    python3 bench/torch_exchange.py [TOKENS...]      one process a GPU, started by itself
"""
import os
import sys

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
    return sorted(times)[REPEATS // 2]


def main(rank, ranks, sizes):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29581")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    for tokens in sizes:
        rows = -(-tokens // ranks)
        q = torch.randn(rows, Q_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        kv = torch.randn(rows, 2 * KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        out = torch.randn(rows * ranks, Q_HEADS // ranks, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        for way, heads, work in (
            ("there", Q_HEADS + 2 * KV_HEADS, lambda q=q, kv=kv: there((q, kv), ranks)),
            ("back", Q_HEADS, lambda out=out: back(out, ranks)),
        ):
            us = measure(work)
            moved = rows * heads * HEAD_DIM * 2 * (ranks - 1) // ranks
            if rank == 0:
                print(
                    f"exchange tokens={rows * ranks} ranks={ranks} path=torch way={way} us={us:.2f} "
                    f"off_rank_bytes={moved} GB/s={moved / us * 1e-3:.0f}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    sizes = [int(x) for x in sys.argv[1:]] or [2, 64, 394, 1576, 6304, 37824]
    count = torch.cuda.device_count()
    mp.spawn(main, args=(count, sizes), nprocs=count)
