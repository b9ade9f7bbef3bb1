"""libdsalt's side on a GPU: the `dsalt-gpu-bench` command, which times CUDA graphs."""
import json
import os
import tempfile

from .errors import Missing
from .ours import find_program, run_dsalt


class GpuBench:
    def __init__(self, path, device, min_time, rows):
        self.program = find_program("dsalt-gpu-bench", "--dsalt-gpu-bench", path)
        self.options, self.rows = ["--device", str(device), "--min-time", str(min_time)], rows

    def run(self, operations, shape, dtype, *more, rows=None):
        """{operation: row} of one shape, as the program writes them; a skipped row says why. `rows`: to compare with
        the definition, if not as usual."""
        with tempfile.TemporaryDirectory(prefix="peer-attention-gpu-") as folder:
            path = os.path.join(folder, "rows.json")
            named = [word for operation in operations for word in ("--operation", operation)]
            run_dsalt([self.program, *named, "--shape", shape, "--dtype", dtype, *self.options, *more, "--rows",
                       str(self.rows if rows is None else rows), "--json", path],
                      allowed=(0, 1))  # 1: every row was skipped
            with open(path) as file:
                written = json.load(file)
        rows = {row["operation"]: row for row in written["rows"]}
        if sorted(rows) != sorted(operations):
            raise Missing(f"`dsalt-gpu-bench` wrote rows of {', '.join(rows)}, need {', '.join(operations)}")
        return rows, written["description"]
