"""Both sides take turns on the same shapes; speeds are compared turn by turn."""
import sys
import time

import numpy as np

from .errors import Missing
from .peers import fit, flex_attention, inputs, reason, sdpa, torch_turn, torch_work
from .problem import Problem, drawn_lists

# ours, the peer: the speeds that are printed
PAIRS = [("dsalt causal", "sdpa causal"), ("dsalt sparse", "sdpa mask"), ("dsalt sparse", "flex mask"),
         ("dsalt sparse", "sdpa causal")]
# how the shape begins, dtype, ours, the peer, the speed wanted
TARGETS = [("1,8,4096,64,", "float32", "dsalt causal", "sdpa causal", 1.3),
           ("1,8,32768,64,256,32", "float32", "dsalt sparse", "sdpa causal", 35.0)]


class Row:
    """One line of the table: `turn` gives (median, best) seconds of a short run of calls."""

    def __init__(self, name, turn, flop):
        self.name, self.turn, self.flop = name, turn, flop
        self.medians, self.best, self.spent = [], float("inf"), 0.0
        start = time.perf_counter()
        times = turn()
        if time.perf_counter() - start > 5:  # what a first call costs beside does not show in a long one
            self.keep(*times, start)

    def keep(self, median, best, start):
        self.medians.append(median)
        self.best = min(self.best, best)
        self.spent += time.perf_counter() - start

    def summary(self):
        median, p10, p90 = spread(self.medians)
        return {"row": self.name, "rounds": len(self.medians), "median_s": median, "p10_s": p10, "p90_s": p90,
                "best_s": self.best, "gflop_per_s": self.flop / median * 1e-9}


def spread(values):
    return tuple(float(np.quantile(values, p)) for p in (0.5, 0.1, 0.9))


def rows_of(numbers, dtype, direction, bench, problem):
    """The rows that run here, warmed up, and {name: reason} of the others."""
    batch, heads, tokens, size, window, landmarks = numbers
    dense, sparse = f"{batch},{heads},{tokens},{size},causal", ",".join(map(str, numbers))
    dense_pairs, sparse_pairs = batch * heads * tokens * (tokens + 1) // 2, problem.pairs()
    tensors = inputs(batch, heads, tokens, size, dtype)

    def masked_sdpa():
        fit(batch, heads, tokens, dtype)
        mask = problem.mask()
        return lambda q, k, v: sdpa(q, k, v, mask)

    def torch_row(function):
        return torch_turn(torch_work(function, tensors, direction))

    makers = [
        ("dsalt causal", dense_pairs, lambda: bench.turn(direction, dense, dtype, dense_pairs)),
        ("sdpa causal", dense_pairs, lambda: torch_row(sdpa)),
        ("dsalt sparse", sparse_pairs, lambda: bench.turn(direction, sparse, dtype, sparse_pairs)),
        ("sdpa mask", sparse_pairs, lambda: torch_row(masked_sdpa())),
        ("flex mask", sparse_pairs, lambda: torch_row(flex_attention(problem, tensors))),
    ]
    rows, skipped = [], {}
    for name, pairs, make in makers:
        try:
            rows.append(Row(name, make(), pairs * size * (4 if direction == "forward" else 10)))
        except Missing as error:
            skipped[name] = str(error)
        except (RuntimeError, MemoryError, ImportError) as error:  # torch's own reason
            skipped[name] = reason(error)
    return rows, skipped


def take_turns(rows, skipped, rounds, budget):
    """`rounds` turns for each row, fewer when its budget is used up or it can go no further (memory ran short, say)."""
    for _ in range(rounds):
        for row in list(rows):
            if row.medians and (len(row.medians) >= rounds or row.spent >= budget):
                continue
            start = time.perf_counter()
            try:
                row.keep(*row.turn(), start)
            except Missing as error:
                rows.remove(row)
                skipped[row.name] = str(error)


def speeds_of(rows):
    """How many times as fast ours is: the median over the rounds that both were in."""
    by_name = {row.name: row for row in rows}
    for ours, peer in PAIRS:
        if ours in by_name and peer in by_name:
            median, p10, p90 = spread([p / o for o, p in zip(by_name[ours].medians, by_name[peer].medians)])
            yield {"ours": ours, "peer": peer, "speed": median, "p10": p10, "p90": p90,
                   "speed_of_best": by_name[peer].best / by_name[ours].best}


def print_group(group, rows, skipped, speeds):
    print(f"\n{group['shape']}  {group['dtype']}  {group['direction']}\n"
          f"  {'milliseconds':13} {'median':>10} {'p10':>10} {'p90':>10} {'best':>10}  GFLOP/s  rounds")
    for row in rows:
        times = " ".join(f"{row[key] * 1e3:10.2f}" for key in ("median_s", "p10_s", "p90_s", "best_s"))
        print(f"  {row['row']:13} {times}  {row['gflop_per_s']:7.1f}  {row['rounds']:6}")
    for name, why in skipped.items():
        print(f"  {name:13} skipped: {why}")
    for s in speeds:
        print(f"  speed of {s['ours']} / {s['peer']}: {s['speed']:.2f}  (p10 {s['p10']:.2f}, p90 {s['p90']:.2f}; "
              f"best over best {s['speed_of_best']:.2f})")
    sys.stdout.flush()


def all_groups(arguments, bench):
    """Every shape, dtype and direction, printed as it is done: the rows and speeds."""
    all_rows, all_speeds = [], []
    for numbers in arguments.shape:
        batch, heads, tokens, _, window, landmarks = numbers
        problem = Problem(tokens, window, drawn_lists(batch, heads, tokens, landmarks, bench.chunk), bench.chunk)
        for dtype in arguments.dtype:
            for direction in arguments.direction:
                group = {"shape": ",".join(map(str, numbers)), "dtype": dtype, "direction": direction}
                rows, skipped = rows_of(numbers, dtype, direction, bench, problem)
                take_turns(rows, skipped, arguments.rounds, arguments.budget)
                summaries, speeds = [row.summary() for row in rows], list(speeds_of(rows))
                print_group(group, summaries, skipped, speeds)
                all_rows += [{**group, **row} for row in summaries]
                all_rows += [{**group, "row": name, "skipped": why} for name, why in skipped.items()]
                all_speeds += [{**group, **speed} for speed in speeds]
                del rows  # and the masks that they hold
    return all_rows, all_speeds


def held_against_targets(speeds):
    """Prints and returns the speeds for which a target is set."""
    held = [{**s, "wanted": wanted, "met": s["speed"] >= wanted} for shape, dtype, ours, peer, wanted in TARGETS
            for s in speeds
            if s["shape"].startswith(shape) and (s["dtype"], s["ours"], s["peer"]) == (dtype, ours, peer)]
    if held:
        print("\ntargets")
    for s in held:
        print(f"  {s['shape']} {s['dtype']} {s['direction']}: speed of {s['ours']} / {s['peer']} is {s['speed']:.2f}, "
              f"wanted {s['wanted']:g}: {'met' if s['met'] else 'missed'}")
    return held
