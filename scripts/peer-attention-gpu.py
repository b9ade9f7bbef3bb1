#!/usr/bin/env python3
"""Times PyTorch's attention on a GPU and libdsalt's side by side, on the same numbers, and prints how they compare.

For every row libdsalt runs first, then PyTorch, then libdsalt again, on the same GPU; libdsalt's time is the mean of
its two medians. Both sides are timed in CUDA graphs of many calls, so that what it costs to start work from the host is
not in it. A speed is the peer's time over ours: above 1, libdsalt is faster.

  dense     attention, bf16, N = 8192 with D = 128 and 64, full and causal, forward and backward
  short     attention, bf16, 32 heads, D = 64, full, 1, 2 and 4 sequences of few queries or few keys
  sparse    attention, bf16, DSALT masks of shapes 3, 5, 9 and 10 (--shape), windows constant and uniform, one
            list of landmarks for all queries: beside compiled FlexAttention with the same mask, dense causal cuDNN
  pieces    RMSNorm, RoPE, SwiGLU, linear + cross-entropy and AdamW, against torch.compile (and torch's fused AdamW)

Peers of dense attention are scaled_dot_product_attention's flash and cuDNN kernels. Both sides get the same tensors, and
both are held against the definition in double on the same rows of `out` or `dq`; both errors are printed. TFLOP/s count
admitted pairs, for every side: those of cuDNN's dense attention are what it achieves on the work that the mask leaves.
"""
import argparse
import json
import os
import sys

sys.dont_write_bytecode = True  # leave no caches beside the sources
from peer_attention.errors import Disagreement, Missing  # noqa: E402  (the other parts need torch: see main)

EXAMPLES = """examples:
  scripts/peer-attention-gpu.py                                # every group
  scripts/peer-attention-gpu.py --quick                        # small shapes, dense and sparse: does everything run?
  scripts/peer-attention-gpu.py --group short --json short.json
  scripts/peer-attention-gpu.py --group sparse --shape 9       # a minute: FlexAttention is compiled for each shape
  scripts/peer-attention-gpu.py --dry-run                      # the masks of the group sparse, on the CPU

needs: python3 -m pip install torch numpy (with CUDA), a GPU, and the command dsalt-gpu-bench, which is built where the
       CUDA module is (cmake --preset release && cmake --build --preset release).

exit codes: 0 measured, 1 no row has both sides, 2 a bad argument, 3 nothing to compare with: torch, the GPU or
dsalt-gpu-bench is missing or fails. A peer that is faster does not change the exit code."""


GROUPS = ["dense", "short", "sparse", "pieces"]


def positive(kind):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not value > 0:
            raise argparse.ArgumentTypeError(f'got "{text}", need a number above 0')
        return value
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(prog="peer-attention-gpu.py", description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", action="append", choices=GROUPS,
                        help="repeatable (default: all)")
    parser.add_argument("--shape", action="append", type=int, choices=[3, 5, 9, 10],
                        help="of the group sparse; repeatable (default: all)")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="number of the GPU (default: 0)")
    parser.add_argument("--min-time", type=positive(float), default=0.2, metavar="SECONDS",
                        help="timed work of each measurement (default: %(default)g)")
    parser.add_argument("--rows", type=positive(int), default=64, metavar="N",
                        help="rows of attention that are held against the definition (default: %(default)s)")
    parser.add_argument("--dsalt-gpu-bench", metavar="PATH",
                        help="the command (default: build/release/bin/dsalt-gpu-bench, then the one on PATH)")
    parser.add_argument("--quick", action="store_true", help="small shapes of attention, dense and sparse")
    parser.add_argument("--dry-run", action="store_true",
                        help="hold the masks of the group sparse against the definition, on the CPU, and stop")
    parser.add_argument("--json", metavar="FILE", help="write every number as JSON")
    arguments = parser.parse_args()
    if arguments.json and not os.path.isdir(os.path.dirname(os.path.abspath(arguments.json))):
        parser.error(f"argument --json: got {arguments.json}, whose folder does not exist")
    if arguments.device < 0:
        parser.error(f"argument --device: got {arguments.device}, need a number from 0 on")
    arguments.group = arguments.group or GROUPS
    if arguments.shape and "sparse" not in arguments.group:
        parser.error("argument --shape: is for the group sparse, which --group leaves out")
    if arguments.quick and arguments.shape:
        parser.error("argument --shape: --quick has shapes of its own")
    return arguments


def run(arguments):
    import torch
    from peer_attention import gpu_rows, gpu_sparse
    from peer_attention.gpu_ours import GpuBench
    if arguments.dry_run:
        return 0 if gpu_sparse.dry_run() else 1
    bench = GpuBench(arguments.dsalt_gpu_bench, arguments.device, arguments.min_time, arguments.rows)
    if not torch.cuda.is_available():
        raise Missing(f"torch {torch.__version__} sees no GPU (torch.cuda.is_available() is false)")
    if arguments.device >= torch.cuda.device_count():
        raise Missing(f"--device: got {arguments.device}, torch sees {torch.cuda.device_count()}")
    torch.cuda.set_device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()} on "
          f"{torch.cuda.get_device_name(arguments.device)}", flush=True)
    comparison = gpu_rows.Comparison(bench, arguments)
    if arguments.quick:
        comparison.attention(gpu_rows.QUICK)
        comparison.sparse([gpu_sparse.QUICK])
    else:
        for group in arguments.group:
            if group == "pieces":
                comparison.pieces()
            elif group == "sparse":
                comparison.sparse([gpu_sparse.SHAPES[n] for n in arguments.shape or gpu_sparse.SHAPES])
            else:
                comparison.attention(gpu_rows.DENSE if group == "dense" else gpu_rows.SHORT)
    print(f"\ndsalt: {comparison.description}")
    if arguments.json:
        results = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                   "device": torch.cuda.get_device_name(arguments.device), "dsalt": comparison.description,
                   "command": sys.argv, "rows": comparison.rows}
        with open(arguments.json + ".part", "w") as file:
            json.dump(results, file, indent=1)
            file.write("\n")
        os.replace(arguments.json + ".part", arguments.json)
    if any("speed" in peer for row in comparison.rows for peer in row["peers"].values()):
        return 0
    print("peer-attention-gpu: no row has both sides", file=sys.stderr)
    return 1


def main():
    arguments = parse_arguments()
    try:
        try:
            import numpy  # noqa: F401
            import torch  # noqa: F401
        except ImportError as error:
            raise Missing(f"{sys.executable} cannot import numpy and torch: {error}. Only this script needs them: "
                          "python3 -m venv venv && venv/bin/pip install torch numpy, and run it with "
                          "venv/bin/python") from error
        return run(arguments)
    except (Missing, Disagreement) as error:
        print(f"peer-attention-gpu: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
