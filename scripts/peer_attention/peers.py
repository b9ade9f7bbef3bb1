"""PyTorch's side: scaled_dot_product_attention and FlexAttention on the CPU."""
import os
import shutil
import time

import numpy as np
import torch

from .errors import Missing


def inputs(batch, heads, tokens, size, dtype, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, heads, tokens, size, generator=generator).to(getattr(torch, dtype)) for _ in range(4)]


def sdpa(q, k, v, mask=None):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)


def sdpa_kernel(size, dtype):
    """The kernel that torch chose, from the name of its backward pass."""
    q, k, v, _ = inputs(1, 1, 256, size, dtype)
    return sdpa(q.requires_grad_(), k, v).grad_fn.name().replace("Backward0", "")


def flex_attention(problem, tensors):
    """FlexAttention, compiled for this problem. Uncompiled it builds every N x N score and is no peer."""
    if not shutil.which(os.environ.get("CXX", "g++").split()[0]):
        raise Missing("no C++ compiler (g++, or $CXX) for torch.compile")
    from torch.nn.attention.flex_attention import flex_attention as flex
    torch._dynamo.reset()  # each shape is compiled for itself
    block_mask, compiled = problem.block_mask(), torch.compile(flex, dynamic=False, fullgraph=True)

    def attention(q, k, v):
        return compiled(q, k, v, block_mask=block_mask)
    with torch.no_grad():
        attention(*tensors[:3])  # compiles
    return attention


def reason(error):
    """One line of torch's often long message: the error inside a compiled function if there is one, else the first."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    inner = [line.split("raised exception", 1)[1].strip() for line in lines if "raised exception" in line]
    return (inner or [f"{type(error).__name__}: {lines[0]}"])[0][:240]


def free_memory():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def torch_work(function, tensors, direction):
    """A call that does the work once. The backward pass alone: the forward pass was done before."""
    q, k, v, dout = tensors
    if direction == "forward":
        def forward():
            with torch.no_grad():
                function(q, k, v)
        return forward
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = function(*leaves)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def torch_turn(work):
    """A turn of half a second of calls: (median, p10), which is what `dsalt bench` gives."""
    def measured():
        times = []
        while not times or sum(times) < 0.5:
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return float(np.quantile(times, 0.5)), float(np.quantile(times, 0.1))
    return measured


def fit(batch, heads, tokens, dtype):
    """Missing, with the sizes, when torch's N x N mask and the copy in q's type that SDPA makes of it would not fit."""
    elements, free = batch * heads * tokens * tokens, free_memory()
    needed = elements * (1 + torch.empty(0, dtype=getattr(torch, dtype)).element_size())
    if needed > 0.7 * free:
        raise Missing(f"the B x H x N x N mask needs {needed / 2**30:.0f} GiB (bool, and SDPA's copy in {dtype}), "
                      f"{free / 2**30:.0f} GiB are free")
