# SPDX-License-Identifier: Apache-2.0
"""Record a PyTorch model's calls on its causal K/V cache and attention as a trace for `ckv replay`.

    recorder = Recorder(layers=2, q_heads=4, kv_heads=2, head_dim=16, dtype=torch.float32, tokens_per_page=4)
    cache.commit = recorder.cache_call("commit", cache.commit, lambda tokens: {"tokens": tokens})
    layer.attend = recorder.attention(layer.attend, layer=0)
    ...
    recorder.chunk(seq_len=11)  # before every chunk
    ...
    recorder.save("trace.safetensors")

docs/FORMATS.md has the format and the rules; examples/record.py records a whole model.
"""
from .file import RecorderError
from .merge import merge
from .recorder import Recorder

__all__ = ["Recorder", "RecorderError", "merge"]
