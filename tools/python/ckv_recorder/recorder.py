# SPDX-License-Identifier: Apache-2.0
"""What wraps a model's calls."""
import functools
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import file
from .file import RecorderError

Shape = Tuple[int, ...]
Tensors = Dict[str, torch.Tensor]

# op: its fields; those with tensors also take k, v and how they lie
FIELDS = {
    "open": {"pin_tokens", "window_tokens", "max_staged_tokens", "causal_block_sizes"},
    "write_range": {"layer", "start"},
    "zero_values": {"layer", "start", "tokens"},
    "forward": {"layer", "seq_len", "causal_block_size"},
    "commit": {"tokens"},
    "close": set(),
}
# How a tensor lies to [tokens, heads, head_dim]; a batch is one rollout.
LAYOUTS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SHD": lambda tensor: tensor,
    "BSHD": lambda tensor: tensor[0],
    "BHSD": lambda tensor: tensor[0].transpose(0, 1),
}


class Recorder:
    """One rank's calls, in order. Tensors are copied to host memory as they are handed over and kept until save.

    q_heads and kv_heads are those of the whole model. With several ranks each has a recorder, which makes the same calls
    and saves a part; `python3 -m ckv_recorder merge` makes the parts one trace. A `shard` of "heads" is for calls with all
    tokens and this rank's heads (attention inside Ulysses, the cache), "tokens" for those with all heads and this rank's
    tokens (attention around it); ranks hold equal parts, in the order of their numbers.
    """

    def __init__(self, *, layers: int, q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype,
                 tokens_per_page: int, scale: Optional[float] = None, rank: int = 0, ranks: int = 1) -> None:
        names = {torch_dtype: name for name, torch_dtype in file.DTYPES.items()}
        if dtype not in names:
            raise RecorderError(f"dtype is {dtype}; a trace holds {', '.join(map(str, names))}")
        if not 0 <= rank < ranks:
            raise RecorderError(f"rank {rank} of {ranks} ranks")
        if q_heads % kv_heads != 0:
            raise RecorderError(f"q_heads {q_heads} is not a multiple of kv_heads {kv_heads}")
        if kv_heads % ranks != 0:
            raise RecorderError(f"kv_heads {kv_heads} is not a multiple of {ranks} ranks")
        self.config = {"layers": layers, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim,
                       "dtype": names[dtype], "tokens_per_page": tokens_per_page}
        if scale is not None:
            self.config["scale"] = scale
        self.rank, self.ranks = rank, ranks
        self._ops: List[Dict[str, Any]] = []
        self._tensors: Tensors = {}
        self._shards: Dict[str, str] = {}
        self._lengths: Optional[Tuple[int, int]] = None

    def chunk(self, seq_len: int, causal_block_size: int = 0) -> None:
        """The forwards from here on have seq_len tokens over all ranks, then padding; block size 0: they are one block."""
        if seq_len < 1 or causal_block_size < 0:
            raise RecorderError(f"seq_len {seq_len}, causal_block_size {causal_block_size}: at least 1 and 0")
        self._lengths = seq_len, causal_block_size

    def attention(self, function: Callable[..., torch.Tensor], layer: int, *, shard: str = "heads",
                  layout: str = "SHD") -> Callable[..., torch.Tensor]:
        """function(q, k, v, ...) recorded: q, k and v are those of the chunk alone, not of the cache, padding included."""
        self._check_layer("attention", layer)

        @functools.wraps(function)
        def recorded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if self._lengths is None:
                raise RecorderError(f"attention of layer {layer} before the first chunk(seq_len)")
            seq_len, block = self._lengths
            tensors = self._take(shard, layout, q=q, k=k, v=v)
            rows = len(tensors["q"]) * (self.ranks if shard == "tokens" else 1)
            if seq_len > rows:
                raise RecorderError(f"attention of layer {layer}: chunk of {seq_len} tokens, q has {rows} rows")
            out = function(q, k, v, *args, **kwargs)
            tensors.update(self._take(shard, layout, expected=out))
            self._append("forward", {"layer": layer, "seq_len": seq_len, "causal_block_size": block}, tensors, shard)
            return out

        return recorded

    def cache_call(self, op: str, function: Callable[..., Any],
                   fields: Callable[..., Optional[Dict[str, Any]]]) -> Callable[..., Any]:
        """function recorded as `op`: fields(the same arguments) are the op's, or None when that call is not recorded (a
        cache that commits in every layer, a trace once). With write_range also k and v, and shard and layout as above."""

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            values = fields(*args, **kwargs)
            call = None if values is None else self._prepare(op, **values)
            result = function(*args, **kwargs)  # one that raises is not recorded
            if call is not None:
                self._append(*call)
            return result

        return recorded

    def op(self, op: str, **fields: Any) -> None:
        """Record an op, for a model that has no call to wrap: its fields as in cache_call."""
        self._append(*self._prepare(op, **fields))

    def save(self, path: str) -> None:
        """A trace, or with several ranks this rank's part of it."""
        part = None if self.ranks == 1 else file.Part(self.rank, self.ranks, self._shards)
        file.write(path, file.File(self.config, self._ops, self._tensors, part))

    def _prepare(self, op: str, shard: str = "heads", layout: str = "SHD",
                 **fields: Any) -> Tuple[str, Dict[str, Any], Tensors, str]:
        tensors = {suffix: fields.pop(suffix) for suffix in ("k", "v") if op == "write_range" and suffix in fields}
        if op not in FIELDS or op == "forward":
            raise RecorderError(f"op '{op}': not one of {', '.join(sorted(set(FIELDS) - {'forward'}))}")
        if set(fields) != FIELDS[op] or (op == "write_range" and len(tensors) != 2):
            wanted = sorted(FIELDS[op] | ({"k", "v"} if op == "write_range" else set()))
            raise RecorderError(f"{op}: has {sorted(set(fields) | set(tensors))}, must have {wanted}")
        self._check_layer(op, fields.get("layer", 0))
        return op, fields, self._take(shard, layout, **tensors), shard

    def _check_layer(self, op: str, layer: int) -> None:
        if not 0 <= layer < self.config["layers"]:
            raise RecorderError(f"{op}: layer {layer}; there are {self.config['layers']}, from 0")

    def _take(self, shard: str, layout: str, **tensors: torch.Tensor) -> Tensors:
        """Copies, dense and [tokens, heads, head_dim]: the model may go on to overwrite its own."""
        if shard not in ("heads", "tokens") or layout not in LAYOUTS:
            raise RecorderError(f"shard '{shard}', layout '{layout}': must be heads or tokens, and {', '.join(LAYOUTS)}")
        taken = {}
        for suffix, tensor in tensors.items():
            shape = tuple(tensor.shape)
            if len(shape) != len(layout) or (len(shape) == 4 and shape[0] != 1):
                raise RecorderError(f"{suffix} is {list(shape)}; {layout} has {len(layout)} dimensions, and a batch of 1")
            lying = LAYOUTS[layout](tensor.detach())
            self._check(suffix, lying, shard)
            taken[suffix] = torch.empty(lying.shape, dtype=lying.dtype).copy_(lying)
        if len({len(tensor) for tensor in taken.values()}) > 1:
            raise RecorderError("rows differ: " + ", ".join(f"{name} {len(tensor)}" for name, tensor in taken.items()))
        return taken

    def _check(self, suffix: str, tensor: torch.Tensor, shard: str) -> None:
        heads = self.config["kv_heads" if suffix in "kv" else "q_heads"] // (self.ranks if shard == "heads" else 1)
        if tensor.dtype != file.DTYPES[self.config["dtype"]]:
            raise RecorderError(f"{suffix} is {tensor.dtype}, the recorder was made for {self.config['dtype']}")
        if tuple(tensor.shape[1:]) != (heads, self.config["head_dim"]):
            raise RecorderError(f"{suffix} is {list(tensor.shape)}; sharded by {shard} over {self.ranks} ranks it must be "
                                f"[tokens, {heads}, {self.config['head_dim']}]")

    def _append(self, op: str, fields: Dict[str, Any], tensors: Tensors, shard: str) -> None:
        if tensors:
            name = f"t{len(self._ops)}"
            fields = {**fields, "tensor": name}
            self._shards[name] = shard
            self._tensors.update({f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()})
        self._ops.append({"op": op, **fields})
