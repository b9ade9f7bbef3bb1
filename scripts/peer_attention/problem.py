"""Which keys a query admits (docs/semantics.md, "The admitted set"): as sets, straight from the definition, and in the
forms that PyTorch takes, a mask and the blocks of FlexAttention."""
import numpy as np
import torch

from .drawn import mixed


class Problem:
    """Which keys each query admits: a window (a number, or one for each query) and landmark lists [B,H,T,K]."""

    def __init__(self, tokens, window, lists, chunk):
        self.tokens, self.window, self.chunk = tokens, window, chunk
        self.lists = np.asarray(lists, dtype=np.int32)
        used = torch.from_numpy(np.where((self.lists >= 0) & (self.lists < tokens), self.lists, tokens)).long()
        listed = torch.zeros(*used.shape[:3], tokens + 1, dtype=torch.bool)  # unused slots go to the last column
        self.listed = listed.scatter_(3, used, True)[..., :tokens].contiguous()
        self.windows = None if np.isscalar(window) else torch.as_tensor(window)
        self.admits = self.mask_function()

    def mask_function(self):
        """[j in A(i)], for whole tensors of indices at once; also the mask_mod of FlexAttention, so it is plain."""
        windows, window, listed, chunk = self.windows, self.window, self.listed, self.chunk

        def admits(b, h, i, j):
            reach = window if windows is None else windows[i]
            return (j <= i) & ((i - j <= reach) | listed[b, h, i // chunk if chunk else 0, j])
        return admits

    def block(self, b, h, first, last, begin=0, end=None):
        end = self.tokens if end is None else end
        return self.admits(b, h, torch.arange(first, last)[:, None], torch.arange(begin, end)[None, :])

    def mask(self):
        """bool [B,H,N,N], filled some rows at a time."""
        result = torch.empty(*self.listed.shape[:2], self.tokens, self.tokens, dtype=torch.bool)
        for b, h, first in np.ndindex(*self.listed.shape[:2], -(-self.tokens // 128)):
            rows = slice(first * 128, min(first * 128 + 128, self.tokens))
            result[b, h, rows] = self.block(b, h, rows.start, rows.stop)
        return result

    def pairs(self):
        """The sum of |A(i)| over sequences, heads and queries; `window` is a number. No N x N anything."""
        batch, heads, lists, _ = self.lists.shape
        i = np.arange(self.tokens)
        total = batch * heads * int((np.minimum(i, self.window) + 1).sum())
        for b, h, t in np.ndindex(batch, heads, lists):
            rows = i[t * self.chunk:(t + 1) * self.chunk] if self.chunk else i
            landmarks = np.unique(self.lists[b, h, t])
            landmarks = landmarks[(landmarks >= 0) & (landmarks < self.tokens)]
            total += int(np.searchsorted(landmarks, rows - self.window).sum())  # those before the window
        return total

    def block_mask(self, size=128):
        """What create_block_mask gives, without the N x N mask that it builds: a block is looked into where the window
        may reach, and taken as partly admitted where a list has a landmark in it."""
        from torch.nn.attention.flex_attention import BlockMask
        batch, heads = self.listed.shape[:2]
        count = -(-self.tokens // size)
        some = torch.zeros(batch, heads, count, count, dtype=torch.bool)
        every = torch.zeros_like(some)
        hit = torch.nn.functional.pad(self.listed, (0, count * size - self.tokens))
        hit = hit.unflatten(3, (count, size)).any(dim=4)
        for b, h, row in np.ndindex(batch, heads, count):
            first, last = row * size, min(row * size + size, self.tokens)
            reach = self.window if self.windows is None else int(self.windows[first:last].max())
            begin = max(first - reach, 0) // size
            inside = self.block(b, h, first, last, begin * size, last)
            inside = torch.nn.functional.pad(inside, (0, -inside.shape[1] % size)).unflatten(1, (-1, size))
            some[b, h, row, begin:row + 1] = inside.any(dim=2).any(dim=0)
            if last - first == size:
                every[b, h, row, begin:row + 1] = inside.all(dim=2).all(dim=0)
            lists = slice(first // self.chunk, (last - 1) // self.chunk + 1) if self.chunk else slice(0, 1)
            some[b, h, row, :row + 1] |= hit[b, h, lists, :row + 1].any(dim=0)

        def ordered(blocks):
            order = torch.argsort(blocks.to(torch.int8), dim=3, descending=True, stable=True)
            return blocks.sum(dim=3, dtype=torch.int32), order.to(torch.int32).contiguous()

        return BlockMask.from_kv_blocks(*ordered(some & ~every), *ordered(every), BLOCK_SIZE=size,
                                        mask_mod=self.admits, seq_lengths=(self.tokens, self.tokens))

    def admitted_by_definition(self, b, h, shorter=0):
        """A(i) = W(i) united with L(i), as sets, straight from the contract; `shorter` plants a fault."""
        for i in range(self.tokens):
            reach = (self.window if self.windows is None else int(self.window[i])) - shorter
            window = {j for j in range(self.tokens) if 0 <= i - j <= reach}
            slots = self.lists[b, h, i // self.chunk if self.chunk else 0]
            yield sorted(window | {int(index) for index in slots if 0 <= index < self.tokens and i - index >= 0})


def attention_by_definition(problem, tensors, shorter=0):
    """out, dq, dk, dv in double, each row a softmax over its own list of keys."""
    q, k, v, dout = (x.double() for x in tensors)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    heads = []
    for b, h in np.ndindex(*q.shape[:2]):
        rows, queries, keys, values = [], q[b, h].unbind(), k[b, h], v[b, h]
        for i, admitted in enumerate(problem.admitted_by_definition(b, h, shorter)):
            weights = torch.softmax(keys[admitted] @ queries[i] * q.shape[3] ** -0.5, dim=0)
            rows.append(weights @ values[admitted])
        heads.append(torch.stack(rows))
    out = torch.stack(heads).view(dout.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def drawn_lists(batch, heads, tokens, landmarks, chunk):
    """The lists of `dsalt bench`: slot k holds a token of the k-th part of those before the chunk."""
    lists = -(-tokens // chunk) if chunk else 1
    if landmarks == 0:
        return np.zeros((batch, heads, lists, 0), dtype=np.int32)
    number = np.arange(batch * heads * lists * landmarks, dtype=np.int64).reshape(batch, heads, lists, landmarks)
    k, t = number % landmarks, number // landmarks % lists
    candidates = np.minimum(tokens, t * chunk) if chunk else np.full_like(t, tokens)
    begin, end = candidates * k // landmarks, candidates * (k + 1) // landmarks
    random = mixed(np.uint64(11 << 48) | number.astype(np.uint64)) >> np.uint64(32)
    drawn = begin + ((random * (end - begin).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    return np.where(candidates <= landmarks, np.where(k < candidates, k, -1), drawn).astype(np.int32)
