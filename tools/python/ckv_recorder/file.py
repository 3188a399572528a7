# SPDX-License-Identifier: Apache-2.0
"""The file of a trace, or of one rank's part of it: tensors, and `__metadata__` with JSON in it."""
import ctypes
import json
import os
import struct
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

import safetensors
import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FILE_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class RecorderError(ValueError):
    """A call or a file that makes no trace. The text has the numbers; nothing has changed."""


@dataclass
class Part:
    """Which rank's part of every tensor a file holds, and how each is cut: shards[NAME] is "heads" or "tokens"."""

    rank: int
    ranks: int
    shards: Dict[str, str]


@dataclass
class File:
    """Heads in config are those of all ranks, in a part too."""

    config: Dict[str, Any]
    ops: List[Dict[str, Any]]
    tensors: Dict[str, torch.Tensor]
    part: Optional[Part] = None


def write(path: str, file: File) -> None:
    """Tensors are dense and on the host. Beside `path`, then renamed: `path` is the old file or the complete new one.
    safetensors' own writer for PyTorch would need NumPy."""
    if os.path.exists(path) and not os.path.isfile(path):  # a device would be replaced
        raise RecorderError(f"{path}: not a regular file")
    metadata = {"config": json.dumps(file.config), "ops": json.dumps(file.ops)}
    if file.part is None:
        metadata["ckv_trace"] = "1"
    else:  # no "ckv_trace": replaying a part as if it were a trace would be wrong without a word
        metadata["ckv_trace_part"] = json.dumps(vars(file.part))
    header, end = {"__metadata__": metadata}, 0
    for name, tensor in file.tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": FILE_DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "wb") as opened:
            opened.write(struct.pack("<Q", len(text)) + text)
            for tensor in file.tensors.values():
                opened.write((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))
        os.replace(beside, path)
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


def read(path: str) -> File:
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise RecorderError(f"{path}: not a regular file")
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    except (OSError, safetensors.SafetensorError) as error:
        raise RecorderError(f"{path}: {error}") from error
    try:
        part = Part(**json.loads(metadata["ckv_trace_part"])) if "ckv_trace_part" in metadata else None
        file = File(json.loads(metadata["config"]), json.loads(metadata["ops"]), tensors, part)
        _check(file)
        return file
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise RecorderError(f"{path}: not a recorder's file: {error}") from error


def _check(file: File) -> None:
    """What a merge relies on; `ckv replay` checks the rest of what is merged."""
    part, dtype = file.part, DTYPES[file.config["dtype"]]
    if not isinstance(file.ops, list):
        raise ValueError("ops is not an array")
    for name, tensor in file.tensors.items():
        if tensor.dtype != dtype or tensor.dim() != 3:
            raise ValueError(f"tensor {name} is {tensor.dtype} {list(tensor.shape)}; it must be 3-dimensional {dtype}")
        if part is not None and part.shards.get(name.rsplit(".", 1)[0]) not in ("heads", "tokens"):
            raise ValueError(f"tensor {name} is not sharded by heads or tokens")
    if part is not None and not 0 <= part.rank < part.ranks:
        raise ValueError(f"rank {part.rank} of {part.ranks}")
    for heads in ("q_heads", "kv_heads"):
        if part is not None and file.config[heads] % part.ranks != 0:
            raise ValueError(f"{heads} {file.config[heads]} is not a multiple of {part.ranks} ranks")
