"""Sparse attention on a GPU beside libdsalt's: FlexAttention with the very same mask, and dense causal attention."""
import time

import torch

from .drawn import windows
from .errors import Disagreement
from .gpu_errors import row_errors
from .problem import drawn_lists

# of `dsalt bench --list`, with one landmark list for all queries (--chunk 0)
SHAPES = {3: "4,32,2048,64,256,32", 5: "2,64/8,32768,64,1023,0", 9: "1,16,16384,128,512,64",
          10: "1,8,65536,128,32..512,64"}
QUICK = "1,4/2,512,64,60,8"
WINDOWS = ("constant", "uniform")
LOW_SHARE = 16  # the smallest window is this part of the largest one, unless lo..hi says it


class Sizes:
    """B,H[/Hkv],N,D,w or lo..hi,K of self-attention."""

    def __init__(self, text):
        batch, heads, tokens, size, window, landmarks = text.split(",")
        self.text = text
        self.batch, self.tokens, self.size, self.landmarks = int(batch), int(tokens), int(size), int(landmarks)
        self.heads, self.kv_heads = (int(heads.split("/")[n]) for n in (0, -1))
        self.window = int(window.split("..")[-1])
        self.low = int(window.split("..")[0]) if ".." in window else self.window // LOW_SHARE

    def of(self, heads):
        return self.batch, heads, self.tokens, self.size


class Mask:
    """Which keys the queries of a shape admit, in tensors that keep their place when other windows are drawn: what is
    compiled for one kind of windows serves the others."""

    def __init__(self, sizes, device):
        self.sizes, rows = sizes, (sizes.batch, sizes.heads, sizes.tokens)
        self.window = torch.empty(rows, dtype=torch.int32, device=device)
        lists = torch.from_numpy(drawn_lists(sizes.batch, sizes.heads, sizes.tokens, sizes.landmarks, 0)[:, :, 0])
        listed = torch.zeros(*rows[:2], sizes.tokens + 1, dtype=torch.bool)  # unused slots go to the last column
        listed.scatter_(2, torch.where(lists < 0, sizes.tokens, lists).long(), True)
        self.listed = listed[..., :-1].contiguous().to(device)
        window, landmark = self.window, self.listed
        if sizes.landmarks:
            def admits(b, h, i, j):
                return (j <= i) & ((i - j <= window[b, h, i]) | landmark[b, h, j])
        else:
            def admits(b, h, i, j):
                return (j <= i) & (i - j <= window[b, h, i])
        self.admits = admits

    def draw(self, kind):
        s = self.sizes
        drawn = windows((s.batch, s.heads, s.tokens), s.low, s.window, kind)
        self.window.copy_(torch.from_numpy(drawn))

    def pairs(self):
        """The sum of |A(i)|: the window's keys, and the landmarks before them."""
        i = torch.arange(self.sizes.tokens, device=self.window.device)
        begin = (i - self.window).clamp(min=0)
        before = torch.nn.functional.pad(self.listed.long().cumsum(2), (1, 0))  # [j]: landmarks below j
        return ((i - begin + 1).sum() + before.gather(2, begin).sum()).item()

    def keys(self, b, h, i):
        begin = max(i - int(self.window[b, h, i]), 0)
        landmarks = self.listed[b, h, :begin].nonzero()[:, 0]
        return torch.cat((landmarks, torch.arange(begin, i + 1, device=landmarks.device)))


class Flex:
    """FlexAttention, compiled. Forward is timed as in training, with what the backward pass needs: so is libdsalt's."""

    def __init__(self, attention, block_mask, q, k, v, dout, clock):
        self.attention, self.block_mask, self.dout, self.clock = attention, block_mask, dout, clock
        self.leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        self.grouped = q.shape[1] != k.shape[1]
        with torch.cuda.stream(clock.stream):
            clock.stream.wait_stream(torch.cuda.default_stream(q.device))
            self.out = self.forward()
            self.backward()
        clock.stream.synchronize()

    def forward(self):
        return self.attention(*self.leaves, block_mask=self.block_mask, enable_gqa=self.grouped)

    def backward(self):
        return torch.autograd.grad(self.out, self.leaves, self.dout, retain_graph=True)

    def result(self, direction):
        with torch.cuda.stream(self.clock.stream):
            result = self.forward().detach() if direction == "forward" else self.backward()[0]
        self.clock.stream.synchronize()
        return result


def block_mask(mask):
    """FlexAttention's blocks by its own create_block_mask, head by head: it builds every N x N element of a mask."""
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask
    s, parts = mask.sizes, []
    for b in range(s.batch):
        for h in range(s.heads):
            def of_head(_, __, i, j, at=(b, h)):
                return mask.admits(*at, i, j)
            parts.append(create_block_mask(of_head, None, None, s.tokens, s.tokens, device=mask.window.device))

    def whole(name):
        tensors = torch.cat([getattr(part, name) for part in parts], dim=1)
        return tensors.view(s.batch, s.heads, *tensors.shape[2:])
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    return BlockMask.from_kv_blocks(*(whole(name) for name in names), BLOCK_SIZE=parts[0].BLOCK_SIZE,
                                    mask_mod=mask.admits, seq_lengths=(s.tokens, s.tokens))


def timed_block_mask(mask):
    """The blocks, and the seconds that making them takes after a first time."""
    block_mask(mask)
    torch.cuda.synchronize()
    start = time.perf_counter()
    blocks = block_mask(mask)
    torch.cuda.synchronize()
    return blocks, time.perf_counter() - start


def compiled_flex():
    """FlexAttention, to be compiled for one shape."""
    from torch.nn.attention.flex_attention import flex_attention
    torch._dynamo.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def check_pairs(name, mask, rows):
    """Disagreement where libdsalt admits another number of pairs: the sides would not time the same mask."""
    pairs = mask.pairs()
    for row in rows.values():
        if not row["skipped"] and row["pairs"] != pairs:
            raise Disagreement(f"dsalt-gpu-bench admits {row['pairs']:.0f} pairs at {name}, this script {pairs}: they "
                               "do not time the same mask")


def dry_run():
    """The masks, pairs and sampled rows of a small problem on the CPU, without libdsalt, against the definition."""
    from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
    good, sizes = True, Sizes("2,4/2,200,16,40,6")
    mask = Mask(sizes, "cpu")
    lists = drawn_lists(sizes.batch, sizes.heads, sizes.tokens, sizes.landmarks, 0)[:, :, 0]
    generator = torch.Generator().manual_seed(1)
    q, dout = (torch.randn(sizes.of(sizes.heads), generator=generator, dtype=torch.float64) for _ in range(2))
    k, v = (torch.randn(sizes.of(sizes.kv_heads), generator=generator, dtype=torch.float64) for _ in range(2))
    for kind in WINDOWS:
        mask.draw(kind)
        expected = torch.zeros(sizes.batch, sizes.heads, sizes.tokens, sizes.tokens, dtype=torch.bool)
        for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in expected.shape[:3])).tolist():
            inside = {j for j in range(sizes.tokens) if 0 <= i - j <= int(mask.window[b, h, i])}
            expected[b, h, i, sorted(inside | {int(j) for j in lists[b, h] if 0 <= j <= i})] = True
        made = create_mask(mask.admits, sizes.batch, sizes.heads, sizes.tokens, sizes.tokens, device="cpu")
        good &= told(f"{kind}: the mask that FlexAttention gets", bool((made == expected).all()))
        good &= told(f"{kind}: {mask.pairs()} admitted pairs", mask.pairs() == int(expected.sum()))
        blocks = block_mask(mask)
        whole = create_block_mask(mask.admits, sizes.batch, sizes.heads, sizes.tokens, sizes.tokens, device="cpu")
        good &= told(f"{kind}: FlexAttention's blocks", bool((blocks.to_dense() == whole.to_dense()).all()))
        with torch.no_grad():
            out = flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)
        error = row_errors(out, "forward", q, k, v, dout, mask.keys, 32)
        good &= told(f"{kind}: sampled rows of out, off by {error['largest']:.1e}", error["largest"] < 1e-12)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        keys, values = (x.repeat_interleave(sizes.heads // sizes.kv_heads, dim=1) for x in leaves[1:])
        scores = leaves[0] @ keys.mT * sizes.size ** -0.5
        dense = torch.softmax(scores.masked_fill(~expected, float("-inf")), dim=3) @ values
        error = row_errors(torch.autograd.grad(dense, leaves, dout)[0], "backward", q, k, v, dout, mask.keys, 32)
        good &= told(f"{kind}: sampled rows of dq, off by {error['largest']:.1e}", error["largest"] < 1e-12)
    return good


def told(what, passed):
    print(f"  {'ok' if passed else 'FAILED':6} {what}", flush=True)
    return passed
