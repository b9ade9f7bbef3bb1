"""What is compared on a GPU: libdsalt, then torch, then libdsalt again, on the same numbers."""
import sys
import time

import torch

from . import gpu_sparse, gpu_torch
from .errors import Missing
from .gpu_errors import dense_keys, row_errors
from .peers import reason

SHORT_LENGTHS = [(51, 51), (126, 126), (51, 1024), (126, 1024), (51, 1120), (51, 2352), (126, 2560), (1120, 51),
                 (2352, 51), (2560, 126)]
# batch, heads, queries, keys, head size, mask
DENSE = [(2, 16, 8192, 8192, 128, "full"), (2, 16, 8192, 8192, 128, "causal"), (2, 32, 8192, 8192, 64, "full"),
         (2, 32, 8192, 8192, 64, "causal")]
SHORT = [(batch, 32, queries, keys, 64, "full") for batch in (1, 2, 4) for queries, keys in SHORT_LENGTHS]
DIRECTIONS = {"forward": "attention", "backward": "attention_backward"}
QUICK = [(1, 4, 512, 512, 64, "causal"), (1, 4, 51, 300, 64, "full")]


class Comparison:
    """Rows as they are measured: printed at once, kept for the JSON."""

    def __init__(self, bench, arguments):
        self.bench, self.arguments = bench, arguments
        self.device = torch.device("cuda", arguments.device)
        self.clock = gpu_torch.Clock(self.device, arguments.min_time)
        self.description, self.rows = None, []

    def ours(self, operations, shape, dtype="bf16", *more, rows=None):
        rows, self.description = self.bench.run(operations, shape, dtype, *more, rows=rows)
        return rows

    def row(self, what, before, peers, after):
        """`before` and `after` are libdsalt's rows, `peers` {name: what was measured}."""
        row = {"what": what, "peers": peers}
        for side, key in ((before, "before"), (after, "after")):
            row[key] = {"skipped": side["skipped"]} if side["skipped"] else side["graph"]
        if not before["skipped"] and not after["skipped"]:
            row["dsalt_s"] = (before["graph"]["median_s"] + after["graph"]["median_s"]) / 2
            row["error"] = before.get("error")
            row["flop"] = before["flop"]
            for peer in peers.values():
                if "median_s" in peer:
                    peer["speed"] = peer["median_s"] / row["dsalt_s"]
        self.rows.append(row)
        print_row(row)

    def attention(self, shapes):
        for batch, heads, queries, keys, size, mask in shapes:
            text = f"{batch},{heads},{queries}{'' if keys == queries else f'x{keys}'},{size},{mask}"
            names = {"forward": "attention", "backward": "attention_backward"}
            before = self.ours(list(names.values()), text)
            peers = self.attention_peers(batch, heads, queries, keys, size, mask == "causal")
            torch.cuda.empty_cache()
            after = self.ours(list(names.values()), text)
            for direction, name in names.items():
                self.row(f"{name} {text} bf16", before[name], peers[direction], after[name])

    def attention_peers(self, batch, heads, queries, keys, size, causal):
        q, dout = (gpu_torch.tensor((batch, heads, queries, size), seed, torch.bfloat16, self.device)
                   for seed in (1, 4))
        k, v = (gpu_torch.tensor((batch, heads, keys, size), seed, torch.bfloat16, self.device) for seed in (2, 3))
        peers = {"forward": {}, "backward": {}}
        for name, backend in gpu_torch.sdpa_backends().items():
            for direction, measured in peers.items():
                def measure():
                    sdpa = gpu_torch.Attention(backend, q, k, v, dout, causal, self.clock)
                    times = self.clock.time(getattr(sdpa, direction))
                    times["error"] = row_errors(sdpa.result(direction), direction, q, k, v, dout,
                                                dense_keys(q, k, causal), self.arguments.rows)
                    return times
                measured[f"sdpa {name}"] = attempt(measure)
        return peers

    def sparse(self, shapes):
        """FlexAttention with the same mask, and dense causal cuDNN on the same tensors."""
        for text in shapes:
            sizes = gpu_sparse.Sizes(text)
            mask, compiled = gpu_sparse.Mask(sizes, self.device), gpu_sparse.compiled_flex()
            q, dout = (gpu_torch.tensor(sizes.of(sizes.heads), seed, torch.bfloat16, self.device) for seed in (1, 4))
            k, v = (gpu_torch.tensor(sizes.of(sizes.kv_heads), seed, torch.bfloat16, self.device) for seed in (2, 3))
            tensors = (q, k, v, dout)
            progress(f"{text}: dense cuDNN")
            dense = self.both_directions(lambda: gpu_torch.Attention(
                gpu_torch.sdpa_backends()["cudnn"], *tensors, True, self.clock), tensors, dense_keys(q, k, True))
            for kind in gpu_sparse.WINDOWS:
                name, options = f"{text} {kind}", ("--windows", kind, "--chunk", "0")
                mask.draw(kind)
                torch.cuda.empty_cache()  # libdsalt's process needs room, too
                progress(f"{name}: libdsalt")
                before = self.ours(["attention", "attention_backward"], text, "bf16", *options)
                gpu_sparse.check_pairs(name, mask, before)
                progress(f"{name}: FlexAttention's blocks")
                start, made = time.perf_counter(), {}

                def flex():
                    blocks, made["mask_s"] = gpu_sparse.timed_block_mask(mask)
                    progress(f"{name}: FlexAttention")
                    result = gpu_sparse.Flex(compiled, blocks, *tensors, self.clock)
                    made["first_call_s"] = time.perf_counter() - start
                    progress(f"{name}: FlexAttention is compiled")
                    return result
                peers = self.both_directions(flex, tensors, mask.keys)
                progress(f"{name}: libdsalt again")
                torch.cuda.empty_cache()
                after = self.ours(["attention", "attention_backward"], text, "bf16", *options, rows=0)
                for direction, operation in DIRECTIONS.items():
                    peers[direction].update({key: value for key, value in made.items() if "from" in peers[direction]})
                    self.row(f"{operation} {name} bf16", before[operation],
                             {"flex": peers[direction], "cudnn causal": dict(dense[direction])}, after[operation])

    def both_directions(self, make, tensors, keys):
        """{direction: times and error} of an attention that is made once."""
        made = attempt(lambda: {"attention": make()})
        if "attention" not in made:
            return {direction: dict(made) for direction in DIRECTIONS}

        def measure(direction):
            times = self.clock.time(getattr(made["attention"], direction))
            result = made["attention"].result(direction)
            return {**times, "error": row_errors(result, direction, *tensors, keys, self.arguments.rows)}
        return {direction: attempt(lambda: measure(direction)) for direction in DIRECTIONS}

    def pieces(self):
        bf16, device, clock = torch.bfloat16, self.device, self.clock
        self.piece("rmsnorm", "1,32,16384,128,full", lambda: gpu_torch.rmsnorm(16384, 4096, bf16, device, clock))
        self.piece("rope", "4,32,4096,128,full", lambda: gpu_torch.rope((4, 32, 4096, 128), bf16, device, clock))
        self.piece("swiglu", "1,32,16384,128,full", lambda: gpu_torch.swiglu(16384, 16384, bf16, device, clock))
        self.loss("1,16,8192,64,full", 8192, 1024, 32000)
        self.adamw("1,16,8192,128,full", 12 * 2048 * 2048)

    def piece(self, operation, shape, make):
        names = {"forward": operation, "backward": operation + "_backward"}
        before = self.ours(list(names.values()), shape)
        made = attempt(lambda: {"piece": make()})
        peers = {direction: {"compiled": attempt(lambda: self.clock.time(getattr(made["piece"], direction)))
                             if "piece" in made else made} for direction in names}
        del made
        torch.cuda.empty_cache()
        after = self.ours(list(names.values()), shape)
        for direction, name in names.items():
            self.row(f"{name} {before[name]['shape']} bf16", before[name], peers[direction], after[name])

    def loss(self, shape, rows, width, classes):
        """Torch keeps logits for its backward pass, libdsalt computes them again: both passes are compared at once."""
        names = ["cross_entropy", "cross_entropy_backward"]
        before = self.ours(names, shape)

        def measure(direction):
            made = gpu_torch.cross_entropy(rows, width, classes, torch.bfloat16, self.device, self.clock)
            return self.clock.time(getattr(made, direction))
        forward, both = attempt(lambda: measure("forward")), attempt(lambda: measure("both"))
        torch.cuda.empty_cache()
        after = self.ours(names, shape)
        what = f"{before[names[0]]['shape']} bf16"
        self.row(f"cross_entropy {what}", before[names[0]], {"compiled": forward}, after[names[0]])
        self.row(f"cross_entropy, both passes, {what}", both_passes(before), {"compiled": both}, both_passes(after))

    def adamw(self, shape, size):
        before = self.ours(["adamw"], shape, "f32")["adamw"]
        peers = {name: attempt(lambda: self.clock.time(gpu_torch.adamw(size, self.device, fused)))
                 for name, fused in (("fused", True), ("compiled", False))}
        torch.cuda.empty_cache()
        self.row(f"adamw {before['shape']} f32", before, peers, self.ours(["adamw"], shape, "f32")["adamw"])


def attempt(measure):
    try:
        return measure()
    except (RuntimeError, MemoryError, ImportError, Missing) as error:  # torch's own reason
        torch.cuda.empty_cache()
        return {"skipped": reason(error)}


def progress(what):
    print(f"... {what}", file=sys.stderr, flush=True)


def both_passes(rows):
    """Forward and backward of one operation as one row."""
    forward, backward = rows["cross_entropy"], rows["cross_entropy_backward"]
    if forward["skipped"] or backward["skipped"]:
        return {"skipped": forward["skipped"] or backward["skipped"]}
    return {"skipped": None, "flop": forward["flop"] + backward["flop"],
            "graph": {"median_s": forward["graph"]["median_s"] + backward["graph"]["median_s"]}}


def error_text(error):
    if not error:
        return ""
    largest, rms = (float("nan") if error[key] is None else error[key] for key in ("largest", "rms"))  # JSON has no NaN
    return f"  {error['of']} off by {largest:.1e}, RMS {rms:.1e}"


def print_row(row):
    print(f"\n{row['what']}")
    if "dsalt_s" in row:
        rate = f"  {row['flop'] / row['dsalt_s'] * 1e-12:7.1f} TFLOP/s" if row["flop"] else ""
        print(f"  {'dsalt':14} {row['dsalt_s'] * 1e6:10.1f} us{rate}{error_text(row.get('error'))}  "
              f"(before {row['before']['median_s'] * 1e6:.1f}, after {row['after']['median_s'] * 1e6:.1f})")
    else:
        print(f"  {'dsalt':14} skipped: {row['before'].get('skipped') or row['after'].get('skipped')}")
    for name, peer in row["peers"].items():
        if "skipped" in peer:
            print(f"  {name:14} skipped: {peer['skipped']}")
            continue
        speed = f"  dsalt is {peer['speed']:.2f} times as fast" if "speed" in peer else ""
        if "speed" in peer and row["flop"]:
            speed = f"  {row['flop'] / peer['median_s'] * 1e-12:7.1f} TFLOP/s{speed}"
        note = "" if peer["from"] == "graph" else "  (not captured: calls in a row)"
        if "mask_s" in peer:
            note += f"  (its blocks {peer['mask_s'] * 1e3:.1f} ms, first call after {peer['first_call_s']:.0f} s)"
        print(f"  {name:14} {peer['median_s'] * 1e6:10.1f} us{speed}{error_text(peer.get('error'))}{note}")
    sys.stdout.flush()
