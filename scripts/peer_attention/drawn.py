"""The very numbers of `dsalt bench` and `dsalt-gpu-bench` (tools/bench/data.cpp), and which rows are sampled."""
import numpy as np

PERIOD = 65521  # a tensor repeats a block of so many numbers


def mixed(counter):
    """SplitMix64, by which `dsalt bench` draws."""
    z = counter * np.uint64(0x9e3779b97f4a7c15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return z ^ (z >> np.uint64(31))


def draw(counter, count):
    """Whole numbers in [0, count)."""
    return (((mixed(counter) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


def block(seed):
    """float32 between -1 and 1: what a tensor of this seed repeats."""
    counter = np.uint64(seed << 32) | np.arange(PERIOD, dtype=np.uint64)
    return (mixed(counter) >> np.uint64(40)).astype(np.float32) * np.float32(2.0 ** -23) - np.float32(1)


def labels(rows, classes):
    return draw(np.uint64(13 << 48) | np.arange(rows, dtype=np.uint64), classes)


def windows(shape, low, high, kind):
    """int32 window sizes of every sequence, head and query: constant, uniform or bimodal between low and high."""
    counter = np.uint64(7 << 48) | np.arange(np.prod(shape), dtype=np.uint64)
    if kind == "constant":
        sizes = np.full(counter.shape, high)
    elif kind == "uniform":
        sizes = low + draw(counter, high - low + 1)
    else:
        sizes = np.where(draw(counter, 2) == 0, low, high)
    return sizes.astype(np.int32).reshape(shape)


def sampled_rows(batch, heads, queries, count):
    """(b, h, i) of every sampled row (tools/gpu_bench/row_errors.hpp)."""
    counter = np.uint64(19 << 48) | np.uint64(3) * np.arange(count, dtype=np.uint64)
    b, h, i = draw(counter, batch), draw(counter + np.uint64(1), heads), draw(counter + np.uint64(2), queries)
    return list(zip(b.tolist(), h.tolist(), i.tolist()))
