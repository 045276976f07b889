"""What the attention of trained models does on their own held-out text: e4's second question.

    python book/tools/looks.py RUNS --to data/measured/e4_values

RUNS holds finished runs with their weights. Of each reported one (seed below 100) the first 16,384
held-out tokens are read in windows of its own length. `looks.json` has, a run a line: the gradient
of each W_V, and what `rrbook.attention.by_block` measures of each block, the entropy of the
tokens' importance among it. Lines of runs that are not in RUNS stay, so that a campaign can be read
in parts.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import rr
from rr.data import batches
from rr.io import write_atomic
from rr.training.context import tokens_of
from rr.training.run_folder import finished
from rrbook import attention
from rrbook.stats.emergence import TUNING

READ = 16_384  # tokens


def looks(folder: Path, result: dict) -> dict:
    """The measures of one run."""
    model, run, _ = rr.load(folder, device="cpu")
    tokens = tokens_of(run, None, lambda line: None)
    window = run.model.seq_len
    idx, targets = batches.gather(tokens.valid, np.arange(0, READ, window), window)
    return {
        "id": run.id,
        "weights_sha256": result["weights_sha256"],
        "window": window,
        "value_gradient": attention.value_gradients(model, idx, targets),
        **attention.by_block(model, idx),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of the finished runs")
    parser.add_argument("--to", required=True, type=Path, help="folder for looks.json")
    given = parser.parse_args()
    table = given.to / "looks.json"
    known = {line["id"]: line for line in json.loads(table.read_text())} if table.exists() else {}
    read = 0
    for folder in sorted(path.parent for path in given.runs.glob("*/run.json")):
        result = finished(folder)
        if result is not None and result["seed"] < TUNING:
            line = looks(folder, result)
            known[line["id"]] = line
            read += 1
    if not read:
        print(f"looks: no finished run with a seed below {TUNING} in {given.runs}", file=sys.stderr)
        return 2
    lines = [json.dumps(known[run]) for run in sorted(known)]
    write_atomic(table, ("[\n" + ",\n".join(lines) + "\n]\n").encode())
    print(f"looks: {read} runs read, {len(known)} told")
    return 0


if __name__ == "__main__":
    sys.exit(main())
