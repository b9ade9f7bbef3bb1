"""PyTorch's side on a GPU: tensors with libdsalt's numbers, CUDA graphs of many calls, the peers of each operation."""
import math

import numpy as np
import torch

from .drawn import block, labels


def tensor(shape, seed, dtype, device):
    """The numbers that `dsalt-gpu-bench` has in a tensor of this seed, rounded once to the same dtype."""
    numbers = torch.from_numpy(block(seed)).to(dtype).to(device)
    size = math.prod(shape)
    return numbers.repeat(-(-size // numbers.numel()))[:size].view(shape).contiguous()


class Clock:
    """Times on one stream, on which everything of a row runs: autograd goes back on the stream that it came by."""

    def __init__(self, device, min_time):
        self.stream, self.min_time = torch.cuda.Stream(device), min_time

    def seconds_of(self, launch, count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            start.record()
            for _ in range(count):
                launch()
            end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    def capture(self, work, calls):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(calls):
                work()
        return graph

    def samples(self, launch, calls):
        """Seconds of a call in samples of at least ten milliseconds, as `dsalt-gpu-bench` takes them."""
        launch_seconds = self.seconds_of(launch, 5) / 5
        launches = max(1, min(1000, math.ceil(10e-3 / max(launch_seconds, 1e-9))))
        times, total = [], 0.0
        while len(times) < 5 or total < self.min_time:
            sample = self.seconds_of(launch, launches)
            times.append(sample / (launches * calls))
            total += sample
        median, p10, p90 = (float(np.quantile(times, p)) for p in (0.5, 0.1, 0.9))
        return {"median_s": median, "p10_s": p10, "p90_s": p90, "repetitions": len(times)}

    def time(self, work):
        """From a CUDA graph; where the work cannot be captured, from calls in a row, and `from` says so."""
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                work()
        self.stream.synchronize()
        try:
            one = self.capture(work, 1)
            self.seconds_of(one.replay, 1)
            calls = max(1, min(200, math.ceil(2e-3 / max(self.seconds_of(one.replay, 5) / 5, 1e-9))))
            del one
            graph = self.capture(work, calls)
        except RuntimeError as error:
            torch.cuda.synchronize()
            return {**self.samples(work, 1), "from": "calls", "why": str(error).splitlines()[0]}
        self.seconds_of(graph.replay, 1)
        return {**self.samples(graph.replay, calls), "from": "graph", "calls_per_graph": calls}


def sdpa_backends():
    from torch.nn.attention import SDPBackend
    return {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


class Attention:
    """scaled_dot_product_attention on one of its back-ends: the works, and what they compute."""

    def __init__(self, backend, q, k, v, dout, causal, clock):
        self.backend, self.causal, self.dout, self.clock = backend, causal, dout, clock
        self.leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        with torch.cuda.stream(clock.stream):
            clock.stream.wait_stream(torch.cuda.default_stream(q.device))
            self.out = self.call()
        clock.stream.synchronize()

    def call(self):
        from torch.nn.attention import sdpa_kernel
        with sdpa_kernel([self.backend]):
            return torch.nn.functional.scaled_dot_product_attention(
                *self.leaves, is_causal=self.causal, enable_gqa=self.leaves[0].shape[1] != self.leaves[1].shape[1])

    def forward(self):
        with torch.no_grad():
            return self.call()

    def backward(self):
        return torch.autograd.grad(self.out, self.leaves, self.dout, retain_graph=True)

    def result(self, direction):
        with torch.cuda.stream(self.clock.stream):
            result = self.forward() if direction == "forward" else self.backward()[0]
        self.clock.stream.synchronize()
        return result


def rotate(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, low * sin + high * cos), dim=-1).to(x.dtype)


class Piece:
    """A function of tensors that torch.compile makes one of; its backward pass alone, or both passes."""

    def __init__(self, function, leaves, seed_shape, dtype, device, clock):
        self.function = torch.compile(function, dynamic=False, fullgraph=True)
        self.leaves = [x.requires_grad_() for x in leaves]
        self.clock = clock
        clock.stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(clock.stream):
            self.out = self.function(*self.leaves)  # compiles
            self.dout = tensor(seed_shape, 3, dtype, device) if seed_shape else torch.ones_like(self.out)
            self.backward()
        clock.stream.synchronize()

    def forward(self):
        with torch.no_grad():
            return self.function(*self.leaves)

    def backward(self):
        return torch.autograd.grad(self.out, self.leaves, self.dout, retain_graph=True)

    def both(self):
        return torch.autograd.grad(self.function(*self.leaves), self.leaves, self.dout)


def rmsnorm(rows, width, dtype, device, clock):
    def function(x, gamma):
        return torch.nn.functional.rms_norm(x, (width,), gamma, 1e-6)
    leaves = [tensor((rows, width), 1, dtype, device), tensor((width,), 2, dtype, device)]
    return Piece(function, leaves, (rows, width), dtype, device, clock)


def rope(shape, dtype, device, clock):
    half = shape[3] // 2
    angle = (torch.arange(shape[2], dtype=torch.float64)[:, None] *
             10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)[None, :])
    cos, sin = angle.cos().float().to(device), angle.sin().float().to(device)
    return Piece(lambda x: rotate(x, cos, sin), [tensor(shape, 1, dtype, device)], shape, dtype, device, clock)


def swiglu(rows, width, dtype, device, clock):
    def function(gate, up):
        return torch.nn.functional.silu(gate) * up
    leaves = [tensor((rows, width), seed, dtype, device) for seed in (1, 2)]
    return Piece(function, leaves, (rows, width), dtype, device, clock)


def cross_entropy(rows, width, classes, dtype, device, clock):
    target = torch.from_numpy(labels(rows, classes)).to(device)

    def function(hidden, weight):
        return torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, weight).float(), target)
    leaves = [tensor((rows, width), 1, dtype, device), tensor((classes, width), 2, dtype, device)]
    return Piece(function, leaves, None, dtype, device, clock)


def adamw(size, device, fused):
    """A step of torch.optim.AdamW in float32: its own fused kernel, or its plain one compiled."""
    parameter = torch.nn.Parameter(tensor((size,), 1, torch.float32, device))
    parameter.grad = tensor((size,), 2, torch.float32, device)
    optimiser = torch.optim.AdamW([parameter], lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=fused,
                                  foreach=None if fused else True, capturable=True)
    return optimiser.step if fused else torch.compile(optimiser.step, fullgraph=False)
