"""Do both sides compute the same? Both are held against the definition in double precision, on small problems."""
import os
import tempfile

import numpy as np
import torch

from .errors import Missing
from .ours import run_dsalt
from .peers import flex_attention, inputs, reason, sdpa
from .problem import Problem, attention_by_definition


def check_problems():
    """Small problems with everything the mask's definition speaks of; the first is of the kind that is timed."""
    tokens, generator = 300, np.random.default_rng(2)  # three blocks of FlexAttention, the last one cut
    one = generator.integers(0, tokens, (2, 2, 1, 4))
    chunked = generator.integers(0, tokens, (2, 2, 5, 4))
    hostile = chunked.copy()
    hostile[:, :, :, 1] = hostile[:, :, :, 0]
    hostile[:, 1] = [[3, 3, -1, 900], [299, 0, 7, 0], [140, 139, 138, 2], [-1, -1, -1, -1], [290, 5, 256, 5]]
    return [("window 20, one list", Problem(tokens, 20, one, 0)),
            ("window 20, a list for every 64 rows", Problem(tokens, 20, chunked, 64)),
            ("a window for each row, repeated, later and unused landmarks",
             Problem(tokens, generator.integers(0, 40, tokens), hostile, 64)),
            ("dense causal", Problem(tokens, tokens - 1, np.zeros((2, 2, 1, 0)), 0))]


def off(actual, expected):
    """The largest error as a fraction of the largest element. NaN counts as infinite."""
    worst = 0.0
    for a, e in zip(actual, expected):
        error = (a.double() - e).abs().max().item() / e.abs().max().item()
        worst = max(worst, error if error == error else float("inf"))
    return worst


# The results are sums of at most 300 products, each rounded to the type's last bit (2^-24 or 2^-9 of its value), taken
# from probabilities that were rounded too: some tens of such roundings at worst in float32, which adds in float32. In
# bfloat16 the sums are in float32, so a few roundings remain: the inputs of each product and the result. A window that
# is one key shorter changes elements by a tenth of the largest, which must not pass.
TOLERANCE = {"float32": 64 * 2.0 ** -24, "bfloat16": 8 * 2.0 ** -9}


def both_sides(dtypes, dsalt):
    """True when every comparison holds. Prints each."""
    print("do both sides compute the same? largest error against the definition in double, over the largest element")
    good, ours = True, []
    for dtype in dtypes:
        tensors = inputs(2, 2, 300, 32, dtype)
        for name, problem in check_problems():
            expected = attention_by_definition(problem, tensors)
            ours.append((name, problem, dtype, tensors, expected))
            causal = name == "dense causal"
            good &= verdict("sdpa", name, dtype, sdpa_results(tensors, None if causal else problem.mask()), expected)
            try:
                flex = flex_attention(problem, tensors)
                with torch.no_grad():
                    good &= verdict("flex", name, dtype, [flex(*tensors[:3])], expected)
            except (Missing, RuntimeError, MemoryError, ImportError) as error:  # torch's own reason
                print(f"  flex   skipped: {reason(error)}")
            if not causal:
                wrong = attention_by_definition(problem, tensors, shorter=1)
                if off(wrong, expected) <= 4 * TOLERANCE[dtype]:
                    good = False
                    print(f"  FAILED this comparison cannot tell a window of one key less: {name}, {dtype}")
    return check_ours(ours, dsalt) and good


def sdpa_results(tensors, mask):
    q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
    out = sdpa(q, k, v, mask)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), tensors[3])]


def verdict(side, name, dtype, actual, expected):
    error = off(actual, expected)
    passed = error <= TOLERANCE[dtype]
    what = "out" if len(actual) == 1 else "out dq dk dv"
    print(f"  {'ok' if passed else 'FAILED':6} {side:5} {dtype:8} {error:7.1e} (allowed {TOLERANCE[dtype]:.1e})",
          f" {what}: {name}",
          flush=True)
    return passed


def check_ours(cases, dsalt):
    """The same problems through a case file (docs/semantics.md, "Case files") and `dsalt golden run`."""
    try:
        import h5py
    except ImportError:
        print("  dsalt  skipped: no h5py to write a case file with: python3 -m pip install h5py")
        return True
    bfloat16 = h5py.h5t.IEEE_F32LE.copy()
    bfloat16.set_fields(15, 7, 8, 0, 7)
    bfloat16.set_size(2)
    bfloat16.set_ebias(127)

    def write(group, name, tensor):
        if tensor.dtype != torch.bfloat16:
            group[name] = tensor.numpy()
            return
        space = h5py.h5s.create_simple(tuple(tensor.shape))
        h5py.h5d.create(group.id, name.encode(), bfloat16, space).write(
            space, space, tensor.contiguous().view(torch.int16).numpy().view(np.uint16), mtype=bfloat16)

    with tempfile.TemporaryDirectory(prefix="peer-attention-") as folder:
        theirs, ours = os.path.join(folder, "theirs.h5"), os.path.join(folder, "ours.h5")
        with h5py.File(theirs, "w") as file:
            file.attrs.update({"schema": "dsalt-cases", "version": 1, "generator": "peer-attention.py"})
            for number, (name, problem, _, tensors, _) in enumerate(cases):
                case = file.create_group(f"cases/{number}")
                case.attrs["op"] = "attention"
                case.attrs["mask"] = "causal" if name == "dense causal" else "sparse"
                group = case.create_group("inputs")
                case.create_group("outputs")
                for key, tensor in zip(("q", "k", "v", "dout"), tensors):
                    write(group, key, tensor)
                if name == "dense causal":
                    continue
                batch, tokens = tensors[0].shape[0], problem.tokens
                windows = torch.as_tensor(problem.window, dtype=torch.int32).expand(batch, 1, tokens)
                write(group, "window", windows.contiguous())
                write(group, "landmarks", torch.from_numpy(problem.lists))
                if problem.chunk:
                    case.attrs["landmark_chunk"] = problem.chunk
        run_dsalt([dsalt, "golden", "run", "--backend", "cpu", theirs, "-o", ours])
        good = True
        with h5py.File(ours, "r") as file:
            for number, (name, _, dtype, _, expected) in enumerate(cases):
                outputs = file[f"cases/{number}/outputs"]
                actual = [torch.from_numpy(outputs[key][...].astype(np.float64)) for key in ("out", "dq", "dk", "dv")]
                good &= verdict("dsalt", name, dtype, actual, expected)
    return good
