"""What the gates of trained runs do: one file a run beside this one, for chapter 13.

    python data/measured/13_inside_the_gate/measure.py CORPUS RUNS [ID ...]    # resumable
    python data/measured/13_inside_the_gate/measure.py story RUNS

CORPUS is `file:` and the folder of the TinyStories slice; RUNS holds finished runs with their
checkpoints; without ID all of them that have an additive gate and a seed below 100. `story` trains
the small net of the explorable on fables into RUNS and writes story.json.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import rr  # noqa: E402
from rr import fables, inside  # noqa: E402
from rr.runs import finished  # noqa: E402
from rr.runtime import git_state, read_json, write_atomic  # noqa: E402

HERE = Path(__file__).parent
RULES = ("review", "review:groups=2", "state-gate", "update-gate")
WINDOWS = 32
KEPT = ("id", "rung", "rule", "seed", "lr", "steps", "tokens", "params", "val_loss", "corpus",
        "corpus_id", "tokenizer", "weights_sha256")  # fmt: skip


def short(x: object) -> object:
    """Numbers to seven digits, so that a record can be read."""
    if isinstance(x, dict):
        return {key: short(value) for key, value in x.items()}
    if isinstance(x, list):
        return [short(value) for value in x]
    return float(f"{x:.7g}") if isinstance(x, float) else x


def made_by() -> dict:
    """What made the numbers: the commit, and the file that holds the analysis."""
    code = sha256((ROOT / "rr" / "inside.py").read_bytes()).hexdigest()
    return {"git": git_state(), "inside_sha256": code, "torch": torch.__version__,
            "precision": "fp32", "threads": torch.get_num_threads()}  # fmt: skip


def write(name: str, found: dict) -> None:
    text = json.dumps(short(found), indent=1, ensure_ascii=False)
    write_atomic(HERE / name, f"{text}\n".encode())


def measure(corpus: str, folder: Path) -> None:
    """Write the record of one run."""
    result = finished(folder)
    model, run, _ = rr.load(folder, "cpu")
    tokens = rr.open_corpus(corpus, run.source["tokenizer"], log=lambda line: None)
    if tokens.identity != {"corpus": run.corpus, "tokenizer": run.tokenizer}:
        raise rr.RRError(f"{corpus} is not the text that run {run.id} was trained on")
    found = {name: result[name] for name in KEPT}
    write(f"{run.id}.json", found | {"made_by": made_by()} | inside.report(model, tokens, WINDOWS))


def main(corpus: str, runs: Path, ids: list[str]) -> None:
    for path in sorted(runs.glob("*/result.json")):
        result = read_json(path)
        chosen = result["rule"] in RULES and result["seed"] < 100
        done = (HERE / f"{result['id']}.json").exists()
        if not done and (result["id"] in ids or not ids and chosen):
            measure(corpus, path.parent)
            print(result["id"], result["rule"], result["seed"], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
