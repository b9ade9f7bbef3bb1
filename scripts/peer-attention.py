#!/usr/bin/env python3
"""Times PyTorch's CPU attention and libdsalt's side by side, on the same shapes, and prints how they compare.

One run does everything, so both sides see the same machine in the same state: the sides take turns, one round each
(ABAB...). A speed is the peer's time over ours, the median over the rounds: above 1, libdsalt is faster. `best` is the
smallest p10 of a round. On each shape B,H,N,D,w,K:

  dsalt causal    the cpu backend, dense causal            dsalt sparse    window w and K landmarks
  sdpa causal     scaled_dot_product_attention, is_causal  sdpa mask       the same keys as `dsalt sparse`, as attn_mask
                                                           flex mask       the same keys, FlexAttention, compiled

First it proves that the masks mean the same: torch's results and those of `dsalt golden run` must agree with a
double-precision evaluation of the definition (docs/semantics.md, "The admitted set") that builds every A(i) as a set,
and must not agree with a window one key shorter.
"""
import argparse
import json
import logging
import os
import sys

sys.dont_write_bytecode = True  # leave no caches beside the sources
from peer_attention.errors import Disagreement, Missing  # noqa: E402  (the other parts need torch: see main)

EXAMPLES = """examples:
  scripts/peer-attention.py                                   # the default shapes, about 15 minutes on two idle cores
  scripts/peer-attention.py --quick                           # a small shape, a minute: does everything run?
  scripts/peer-attention.py --check-only                      # only whether both sides compute the same
  scripts/peer-attention.py --shape 1,8,4096,64,256,32 --dtype float32 --threads 1 --json peer.json

needs: python3 -m pip install torch numpy; h5py to compare libdsalt's numbers; a C++ compiler for FlexAttention;
       and the `dsalt` command (cmake --preset release && cmake --build --preset release).

exit codes: 0 measured, 1 the sides disagree, 2 a bad argument, 3 nothing to compare with: torch, numpy
or the dsalt command is missing or fails.
A target that is missed does not change the exit code: timings depend on the machine."""
SHAPES = [(1, 8, 4096, 64, 256, 32), (1, 8, 32768, 64, 256, 32)]
QUICK_SHAPES = [(1, 2, 512, 64, 64, 16)]


def shape(text):
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 6 or min(values[:4]) < 1 or min(values[4:]) < 0:
        raise argparse.ArgumentTypeError(
            f'got "{text}", need B,H,N,D,w,K: six whole numbers, the first four at least 1, such as 1,8,4096,64,256,32')
    return values


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
    parser = argparse.ArgumentParser(prog="peer-attention.py", description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", type=shape, metavar="B,H,N,D,w,K",
                        help="batch, heads, tokens, head size, window, landmarks; repeatable (default: "
                        + " and ".join(",".join(map(str, s)) for s in SHAPES) + ")")
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16"],
                        help="repeatable (default: both)")
    parser.add_argument("--direction", action="append", choices=["forward", "backward"],
                        help="repeatable (default: both)")
    parser.add_argument("--threads", type=positive(int), default=len(os.sched_getaffinity(0)), metavar="N",
                        help="threads of either side (default: the processors this process may use, %(default)s here)")
    parser.add_argument("--rounds", type=positive(int), default=7, metavar="N",
                        help="how often the sides take turns (default: %(default)s)")
    parser.add_argument("--budget", type=positive(float), default=60.0, metavar="SECONDS",
                        help="a row that has run this long gets no further round (default: %(default)g)")
    parser.add_argument("--dsalt", metavar="PATH", 
                        help="the dsalt command (default: build/release/bin/dsalt, then the one on PATH)")
    parser.add_argument("--quick", action="store_true", help="one small shape, two rounds")
    parser.add_argument("--check-only", action="store_true", help="prove the masks and stop")
    parser.add_argument("--json", metavar="FILE", help="write every number as JSON")
    arguments = parser.parse_args()
    if arguments.json and not os.path.isdir(os.path.dirname(os.path.abspath(arguments.json))):
        parser.error(f"argument --json: got {arguments.json}, whose folder does not exist")
    arguments.shape = arguments.shape or (QUICK_SHAPES if arguments.quick else SHAPES)
    arguments.dtype = arguments.dtype or ["float32", "bfloat16"]
    arguments.direction = arguments.direction or ["forward", "backward"]
    if arguments.quick:
        arguments.rounds = min(arguments.rounds, 2)
    return arguments


def processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def write_json(path, results):
    with open(path + ".part", "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)


def run(arguments):
    from peer_attention import ours  # notes the processors, before torch
    import torch
    from peer_attention import check, measure, peers
    dsalt = ours.find_dsalt(arguments.dsalt)
    bench = None if arguments.check_only else ours.Bench(dsalt, arguments.threads)
    torch.set_num_threads(arguments.threads)
    kernels = {dtype: peers.sdpa_kernel(arguments.shape[0][3], dtype) for dtype in arguments.dtype}
    results = {"dsalt": ours.version(dsalt), "torch": torch.__version__, "processor": processor(),
               "instructions": torch.backends.cpu.get_cpu_capability(), "sdpa_kernel": kernels,
               "threads": arguments.threads, "command": sys.argv}
    print(f"{results['dsalt']} and torch {torch.__version__} ({results['instructions']}) on {processor()}, "
          f"{arguments.threads} thread{'s' if arguments.threads > 1 else ''} each")
    for dtype, kernel in kernels.items():
        print(f"scaled_dot_product_attention in {dtype} runs {kernel}")
    print(flush=True)
    if not check.both_sides(arguments.dtype, dsalt):
        print("\nthe sides do not compute the same, so nothing is timed")
        return 1
    if arguments.check_only:
        return 0
    results["rows"], results["speeds"] = measure.all_groups(arguments, bench)
    results["targets"] = measure.held_against_targets(results["speeds"])
    if arguments.json:
        write_json(arguments.json, results)
    if not results["speeds"]:
        raise Missing("nothing was compared: see above what was skipped")
    return 0


def main():
    arguments = parse_arguments()
    try:
        try:
            import numpy  # noqa: F401
            import torch  # noqa: F401
        except ImportError as error:
            raise Missing(f"{sys.executable} cannot import numpy and torch: {error}. Only this script needs them: "
                          "python3 -m venv venv && venv/bin/pip install torch numpy h5py, and run it with "
                          "venv/bin/python") from error
        for name in ("torch.utils.flop_counter", "torch.utils.cpp_extension"):  # both miss CUDA, which is not used
            logging.getLogger(name).setLevel(logging.ERROR)
        return run(arguments)
    except (Missing, Disagreement) as error:
        print(f"peer-attention: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
