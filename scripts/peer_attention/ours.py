"""libdsalt's side: the `dsalt` command."""
import json
import os
import shutil
import subprocess
import tempfile

from .errors import Disagreement, Missing

# Before torch is imported: where OMP_PROC_BIND is set, its OpenMP ties this thread to one processor, and `dsalt` would be
# left with that one.
PROCESSORS = os.sched_getaffinity(0)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run_dsalt(command, allowed=(0,)):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, PROCESSORS))
    if result.returncode not in allowed:
        reason = (result.stderr.strip() or result.stdout.strip() or "it said nothing").splitlines()[-1]
        raise Missing(f"`{' '.join(command)}` failed with exit code {result.returncode}: {reason}")
    return result.stdout


def find_program(name, option, path):
    """The program that `option` named, or the one that was built here, or the one on PATH."""
    if path:
        if not os.path.isfile(path) or not os.access(path, os.X_OK):
            raise Missing(f"{option}: got {path}, which is no program; need one such as build/release/bin/{name}")
        return os.path.abspath(path)
    built = os.path.join(ROOT, "build", "release", "bin", name)
    found = built if os.access(built, os.X_OK) else shutil.which(name)
    if not found:
        raise Missing(f"no {name} command in build/release/bin or on PATH; build it: "
                      f"cmake --preset release && cmake --build --preset release, or name it: {option} PATH")
    return found


def find_dsalt(path):
    return find_program("dsalt", "--dsalt", path)


def version(dsalt):
    return run_dsalt([dsalt, "--version"]).splitlines()[0]


class Bench:
    """`dsalt bench`, one row a call: it warms up, then calls for half a second and at least three times."""
    chunk = 128  # rows for each landmark list

    def __init__(self, dsalt, threads):
        run_dsalt([dsalt, "bench", "--list"])  # an older dsalt has no bench: better known now than after minutes
        self.command = [dsalt, "bench", "--backend", "cpu", "--threads", str(threads), "--chunk", str(self.chunk),
                        "--max-time", "3600"]  # its estimate would skip a long row in one round and not in the next

    def turn(self, direction, shape, dtype, pairs):
        """A turn that gives (median, p10): single times are not written. `pairs`: what the mask has to admit."""
        operation = "attention" if direction == "forward" else "attention_backward"

        def measured():
            with tempfile.TemporaryDirectory(prefix="peer-attention-") as folder:
                path = os.path.join(folder, "row.json")
                run_dsalt([*self.command, "--operation", operation, "--shape", shape, "--dtype", dtype, "--json", path],
                          allowed=(0, 1))  # 1: the only row was skipped
                with open(path) as file:
                    rows = json.load(file)["rows"]
            if len(rows) != 1 or rows[0]["operation"] != operation:
                raise Missing(f"`dsalt bench` wrote {len(rows)} rows, need one of {operation}")
            if rows[0]["skipped"]:
                raise Missing(rows[0]["skipped"])
            if rows[0]["pairs"] != pairs:
                raise Disagreement(f"`dsalt bench` admits {rows[0]['pairs']:.0f} pairs at {shape}, this script "
                                   f"{pairs}: they do not time the same mask")
            return rows[0]["median_s"], rows[0]["p10_s"]
        return measured
