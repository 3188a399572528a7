# SPDX-License-Identifier: Apache-2.0
"""The parts that ranks have saved, made one trace."""
import os
from typing import List, Sequence

import torch

from . import file
from .file import File, RecorderError

AXES = {"tokens": 0, "heads": 1}


def merge(out: str, paths: Sequence[str]) -> None:
    """All parts, in any order, or one part on its own: then the trace of that rank's heads, where all calls had all
    tokens."""
    for path in paths:
        if os.path.exists(out) and os.path.exists(path) and os.path.samefile(out, path):
            raise RecorderError(f"{out}: one of the parts; give another file")
    files = [file.read(path) for path in paths]
    for path, part in zip(paths, files):
        if part.part is None:
            raise RecorderError(f"{path}: not one rank's part; a trace is merged already")
    if len(files) == 1:
        file.write(out, _alone(paths[0], files[0]))
        return
    _check_ranks(paths, files)
    for path, other in zip(paths, files):
        _check_same(paths[0], files[0], path, other)
    files.sort(key=lambda part: part.part.rank)
    tensors = {}
    for name in files[0].tensors:
        pieces = [part.tensors[name] for part in files]
        if len({piece.shape for piece in pieces}) > 1:
            shapes = ", ".join(f"rank {rank} {list(piece.shape)}" for rank, piece in enumerate(pieces))
            raise RecorderError(f"tensor {name}: shapes differ: {shapes}")
        tensors[name] = torch.cat(pieces, AXES[_shard(files[0], name)])
    file.write(out, File(files[0].config, files[0].ops, tensors))


def _shard(part: File, tensor: str) -> str:
    return part.part.shards[tensor.rsplit(".", 1)[0]]


def _alone(path: str, part: File) -> File:
    for name in part.tensors:
        if _shard(part, name) == "tokens":
            raise RecorderError(f"{path}: {name} has one rank's tokens: all {part.part.ranks} parts are needed, 1 is given")
    heads = {field: part.config[field] // part.part.ranks for field in ("q_heads", "kv_heads")}
    return File({**part.config, **heads}, part.ops, part.tensors)


def _check_ranks(paths: Sequence[str], files: List[File]) -> None:
    ranks = files[0].part.ranks
    seen = {}
    for path, part in zip(paths, files):
        rank = part.part.rank
        if part.part.ranks != ranks:
            raise RecorderError(f"{path}: of {part.part.ranks} ranks, {paths[0]} of {ranks}")
        if rank in seen:
            raise RecorderError(f"{path}: rank {rank}, as {seen[rank]}")
        seen[rank] = path
    if len(seen) < ranks:
        missing = next(rank for rank in range(ranks) if rank not in seen)
        raise RecorderError(f"{len(seen)} parts of {ranks} ranks: rank {missing} is missing")


def _check_same(path: str, first: File, other_path: str, other: File) -> None:
    """Ranks must have made the same calls; where they part is where the model went wrong before its attention did."""
    if other.config != first.config:
        raise RecorderError(f"{other_path}: config {other.config}, {path} has {first.config}")
    for index, (a, b) in enumerate(zip(first.ops, other.ops)):
        if a != b:
            raise RecorderError(f"{other_path}: op {index} is {b}, in {path} {a}")
    if len(first.ops) != len(other.ops):
        raise RecorderError(f"{other_path}: {len(other.ops)} ops, {path} has {len(first.ops)}")
    if set(first.tensors) != set(other.tensors) or first.part.shards != other.part.shards:
        raise RecorderError(f"{other_path}: tensors are named or sharded otherwise than in {path}")
