# SPDX-License-Identifier: Apache-2.0
"""The recorder, and what `ckv replay` says of its traces. Run by ci/python_recorder, with CKV naming the program."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from typing import List

import torch
from ckv_recorder import Recorder, RecorderError, merge
from safetensors import safe_open

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CKV = os.environ["CKV"]
CONFIG = {"layers": 1, "q_heads": 4, "kv_heads": 2, "head_dim": 16, "dtype": torch.float32, "tokens_per_page": 4}


def call(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, check=False)


def tensors(rows: int = 6, q_heads: int = 4, kv_heads: int = 2, dtype: torch.dtype = torch.float32) -> List[torch.Tensor]:
    return [torch.randn(rows, heads, 16).to(dtype) for heads in (q_heads, kv_heads, kv_heads)]


def same(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return q.clone()


class Case(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)


class ModelTest(Case):
    """examples/record.py from end to end."""

    def record(self, *arguments: str) -> None:
        done = call(sys.executable, os.path.join(ROOT, "examples/record.py"), self.path("trace"), *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)

    def merge(self, *parts: str) -> None:
        done = call(sys.executable, "-m", "ckv_recorder", "merge", self.path("trace"), *map(self.path, parts))
        self.assertEqual(done.returncode, 0, done.stderr)

    def replay(self, wrong: int, ranks: int) -> None:
        done = call(os.path.join(ROOT, "ci/ranks"), str(ranks), CKV, "replay", self.path("trace"))
        lines = done.stdout.splitlines()
        self.assertEqual(done.returncode, int(wrong > 0), done.stdout + done.stderr)
        self.assertEqual(lines[-1], f"16 forwards, {16 - wrong} ok, {wrong} wrong")
        if wrong:
            self.assertTrue(lines[0].startswith("forward 0: tokens 11 (padded 12) block 11 "), done.stdout)
            self.assertIn("the recorded output (.expected) differs", lines[1])
            self.assertIn("one key explains it: padding row 11 was read", lines[3])

    def replays(self, wrong: int) -> None:
        for ranks in (1, 2):
            with self.subTest(replayed_on=ranks):
                self.replay(wrong, ranks)

    def test_one_rank(self) -> None:
        self.record()
        self.replays(0)

    def test_one_rank_reads_padding(self) -> None:
        self.record("--bug")
        self.replays(4)

    def test_padding_that_was_read_is_explained_and_shrunk(self) -> None:
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.record("--bug", "--ranks", str(ranks))
                if ranks > 1:
                    self.merge("trace.0", "trace.1")
                verdict = "padding: the forward's padding rows are attended with what they hold"
                done = call(CKV, "explain", self.path("trace"), "-f", "0", "-r", "0", "--ranks", str(ranks))
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"verdict: {verdict}", done.stdout)
                done = call(CKV, "repro", "shrink", self.path("trace"), "--ranks", str(ranks), "-o", self.path("small"))
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(verdict, done.stdout.splitlines()[-1])
                self.assertLessEqual(int(done.stdout.split("shrunk to ")[1].split()[0]), 16)
                done = call(CKV, "replay", self.path("small"))
                self.assertEqual(done.returncode, 1, done.stderr)

    def test_two_ranks_inside_ulysses(self) -> None:
        self.record("--ranks", "2")
        self.merge("trace.0", "trace.1")
        self.replays(0)
        self.merge("trace.1")  # one rank's heads are a trace of their own
        self.replay(0, 1)

    def test_two_ranks_inside_ulysses_read_padding(self) -> None:
        self.record("--ranks", "2", "--bug")
        self.merge("trace.1", "trace.0")
        self.replays(4)
        self.merge("trace.1")
        self.replay(4, 1)

    def test_two_ranks_around_ulysses(self) -> None:
        self.record("--ranks", "2", "--shard", "tokens")
        self.merge("trace.0", "trace.1")
        self.replays(0)

    def test_two_ranks_around_ulysses_read_padding(self) -> None:
        self.record("--ranks", "2", "--shard", "tokens", "--bug")
        self.merge("trace.1", "trace.0")
        self.replays(4)


class RecorderTest(Case):
    def refused(self, text: str, function, *arguments, **named) -> None:
        with self.assertRaises(RecorderError) as refusal:
            function(*arguments, **named)
        self.assertIn(text, str(refusal.exception))

    def test_layouts_and_dtypes(self) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            given = tensors(dtype=dtype)
            for layout in ("SHD", "BSHD", "BHSD"):
                lie = {"SHD": lambda x: x, "BSHD": lambda x: x[None], "BHSD": lambda x: x.transpose(0, 1)[None]}[layout]
                recorder = Recorder(**{**CONFIG, "dtype": dtype})
                recorder.chunk(5)
                recorder.attention(same, 0, layout=layout)(*map(lie, given))
                recorder.save(self.path("trace"))
                with safe_open(self.path("trace"), framework="pt") as trace:
                    for suffix, tensor in zip("qkv", given):
                        self.assertTrue(torch.equal(trace.get_tensor(f"t0.{suffix}"), tensor))
                    self.assertTrue(torch.equal(trace.get_tensor("t0.expected"), given[0]))

    def test_tensors_are_copied_before_the_model_changes_them(self) -> None:
        given = tensors()
        kept = given[1].clone()
        recorder = Recorder(**CONFIG)
        recorder.chunk(6)

        def overwrites(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            k.zero_()
            return q

        recorder.attention(overwrites, 0)(*given)
        given[0].zero_()
        recorder.save(self.path("trace"))
        with safe_open(self.path("trace"), framework="pt") as trace:
            self.assertTrue(torch.equal(trace.get_tensor("t0.k"), kept))
            self.assertTrue(trace.get_tensor("t0.expected").any())

    def test_a_call_that_raises_or_is_left_out_is_not_recorded(self) -> None:
        recorder = Recorder(**CONFIG)
        with self.assertRaises(ZeroDivisionError):
            recorder.cache_call("commit", lambda tokens: 1 // 0, lambda tokens: {"tokens": tokens})(11)
        self.assertEqual(recorder.cache_call("commit", lambda layer: layer, lambda layer: None)(7), 7)
        recorder.save(self.path("trace"))
        with safe_open(self.path("trace"), framework="pt") as trace:
            self.assertEqual(trace.metadata()["ops"], "[]")

    def test_refusals_name_the_numbers(self) -> None:
        self.refused("torch.int8", Recorder, **{**CONFIG, "dtype": torch.int8})
        self.refused("rank 2 of 2", Recorder, **CONFIG, rank=2, ranks=2)
        self.refused("kv_heads 2 is not a multiple of 4 ranks", Recorder, **CONFIG, ranks=4)
        self.refused("q_heads 3 is not a multiple of kv_heads 2", Recorder, **{**CONFIG, "q_heads": 3})
        recorder = Recorder(**CONFIG)
        self.refused("layer 1; there are 1", recorder.attention, same, 1)
        attention = recorder.attention(same, 0)
        self.refused("before the first chunk", attention, *tensors())
        recorder.chunk(7)
        self.refused("chunk of 7 tokens, q has 6 rows", attention, *tensors())
        self.refused("k is [6, 3, 16]", attention, *tensors(kv_heads=3))
        self.refused("q is torch.float16", attention, *tensors(dtype=torch.float16))
        self.refused("q 6, k 5", attention, tensors()[0], *tensors(rows=5)[1:])
        self.refused("q is [2, 6, 4, 16]", recorder.attention(same, 0, layout="BSHD"),
                     *(torch.stack([tensor] * 2) for tensor in tensors()))
        self.refused("layout 'HSD'", recorder.attention(same, 0, layout="HSD"), *tensors())
        self.refused("seq_len 0", recorder.chunk, 0)
        self.refused("op 'forward'", recorder.op, "forward", layer=0)
        self.refused("has ['token'], must have ['tokens']", recorder.op, "commit", token=3)
        self.refused("must have ['k', 'layer', 'start', 'v']", recorder.op, "write_range", layer=0, start=0)
        recorder.save(self.path("trace"))
        with safe_open(self.path("trace"), framework="pt") as trace:
            self.assertEqual((trace.metadata()["ops"], list(trace.keys())), ("[]", []))


class MergeTest(Case):
    def part(self, name: str, rank: int = 0, ranks: int = 2, rows: int = 6, shard: str = "heads", commit: int = 5,
             **config) -> str:
        config = {**CONFIG, **config}
        recorder = Recorder(**config, rank=rank, ranks=ranks)
        recorder.chunk(5)
        heads = ranks if shard == "heads" else 1
        recorder.attention(same, 0, shard=shard)(*tensors(rows, config["q_heads"] // heads, config["kv_heads"] // heads))
        recorder.op("commit", tokens=commit)
        recorder.save(self.path(name))
        return self.path(name)

    def refused(self, text: str, *paths: str) -> None:
        with self.assertRaises(RecorderError) as refusal:
            merge(self.path("out"), paths)
        self.assertIn(text, str(refusal.exception))
        self.assertFalse(os.path.exists(self.path("out")))

    def test_the_command_refuses_in_one_line(self) -> None:
        done = call(sys.executable, "-m", "ckv_recorder", "merge", self.path("out"), self.path("none"))
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("ckv_recorder: "), done.stderr)

    def test_a_part_is_not_written_over(self) -> None:
        paths = [self.part(str(rank), rank) for rank in (0, 1)]
        os.symlink(paths[1], self.path("link"))
        with open(paths[0], "rb") as part:
            before = part.read()
        for out in (paths[0], self.path("link"), os.path.join(self.folder, ".", "1")):
            with self.assertRaisesRegex(RecorderError, "one of the parts; give another file"):
                merge(out, paths)
        with open(paths[0], "rb") as part:
            self.assertEqual(part.read(), before)

    def test_only_regular_files_are_read_and_replaced(self) -> None:
        paths = [self.part(str(rank), rank) for rank in (0, 1)]
        os.mkfifo(self.path("pipe"))
        for special in (self.path("pipe"), self.folder):
            with self.assertRaisesRegex(RecorderError, ": not a regular file"):
                merge(special, paths)
            self.refused(": not a regular file", paths[0], special)
        self.assertFalse(os.path.isfile(self.path("pipe")))

    def test_parts_meet_in_the_order_of_their_ranks(self) -> None:
        for shard, axis in (("tokens", 0), ("heads", 1)):
            paths = [self.part(str(rank), rank, shard=shard) for rank in (0, 1)]
            merge(self.path("whole"), paths[::-1])
            files = [safe_open(path, framework="pt") for path in (*paths, self.path("whole"))]
            for name in files[0].keys():
                first, second, whole = (opened.get_tensor(name) for opened in files)
                self.assertTrue(torch.equal(whole, torch.cat([first, second], axis)))

    def test_parts_that_do_not_fit_are_refused(self) -> None:
        first = self.part("0")
        self.refused("all 2 parts are needed, 1 is given", self.part("tokens", shard="tokens"))
        thirds = [self.part(f"third{rank}", rank, ranks=3, q_heads=6, kv_heads=3) for rank in (0, 2)]
        self.refused("2 parts of 3 ranks: rank 1 is missing", *thirds)
        self.refused("of 3 ranks", first, thirds[1])
        self.refused("rank 0, as", first, self.part("again"))
        self.refused("not one rank's part", first, self.part("single", ranks=1))
        self.refused("op 1 is {'op': 'commit', 'tokens': 4}", first, self.part("commit", 1, commit=4))
        self.refused("shapes differ: rank 0 [6, 2, 16], rank 1 [7, 2, 16]", first, self.part("rows", 1, rows=7))
        self.refused("config {", first, self.part("config", 1, layers=2))
        self.refused("sharded otherwise", first, self.part("shard", 1, shard="tokens"))

    def test_files_of_others_are_refused(self) -> None:
        self.refused("No such file", self.path("none"))
        with open(self.part("0"), "rb") as part:
            data = part.read()
        for name, text, broken in (("cut", "", data[:-1]), ("short", "", data[:7]), ("empty", "", b""),
                                   ("shard", "not sharded", data.replace(b'heads\\"}', b'layer\\"}')),
                                   ("rank", "rank 7 of 2", data.replace(b'rank\\": 0', b'rank\\": 7')),
                                   ("ranks", "not a multiple of 9", data.replace(b'ranks\\": 2', b'ranks\\": 9')),
                                   ("dtype", "'fp99'", data.replace(b"fp32", b"fp99"))):
            with self.subTest(name):
                self.assertNotEqual(broken, data)
                with open(self.path(name), "wb") as opened:
                    opened.write(broken)
                self.refused(text, self.path(name))

    def test_deep_json_is_refused(self) -> None:
        with open(self.part("0"), "rb") as part:
            length, = struct.unpack("<Q", part.read(8))
            header, data = json.loads(part.read(length)), part.read()
        for key in ("ops", "config", "ckv_trace_part"):
            deep = {**header, "__metadata__": {**header["__metadata__"], key: "[" * 100000}}
            text = json.dumps(deep).encode()
            with open(self.path("deep"), "wb") as opened:
                opened.write(struct.pack("<Q", len(text)) + text + data)
            self.refused("not a recorder's file", self.path("deep"))


if __name__ == "__main__":
    unittest.main()
