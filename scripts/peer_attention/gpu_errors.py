"""How far torch's attention is from the definition, on the rows on which `dsalt-gpu-bench` looks at libdsalt's."""
import torch

from .drawn import sampled_rows


def row_by_definition(q, k, v, dout):
    """out and dq of one query over its admitted keys, in double."""
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    scale = q.shape[0] ** -0.5
    weights = torch.softmax(scale * (k @ q), dim=0)
    out = weights @ v
    return out, scale * ((weights * (v @ dout - out @ dout)) @ k)


def dense_keys(q, k, causal):
    """Which keys a row of a dense problem admits, for `row_errors`."""
    def keys(b, h, i):
        return slice(0, max(i + k.shape[2] - q.shape[2] + 1, 0) if causal else k.shape[2])
    return keys


def row_errors(result, direction, q, k, v, dout, keys, count):
    """As the program's `error`: largest and RMS difference of `out` or `dq`, and the RMS of the definition.
    keys(b, h, i): those that a row admits."""
    errors, expected, group = [], [], q.shape[1] // k.shape[1]
    for b, h, i in sampled_rows(q.shape[0], q.shape[1], q.shape[2], count):
        admitted, g = keys(b, h, i), h // group
        out, dq = row_by_definition(q[b, h, i], k[b, g, admitted], v[b, g, admitted], dout[b, h, i])
        right = out if direction == "forward" else dq
        errors.append(result[b, h, i].double() - right)
        expected.append(right)
    errors, expected = torch.stack(errors), torch.stack(expected)
    return {"of": "out" if direction == "forward" else "dq", "rows": count, "largest": errors.abs().max().item(),
            "rms": errors.square().mean().sqrt().item(), "magnitude": expected.square().mean().sqrt().item()}
