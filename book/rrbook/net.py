"""A trained net as one file that a page reads: chapter 2's live network, or a run of the reader's.

    python -m rrbook.net runs/1a2b3c4d5e6f my_net.json

The file is JSON: the shape, the tokenizer's pieces and merges, and the weights as float16 in
base64. The page computes with these weights; `model_of` gives them back as an `rr.Model`, to which
the tests hold the page.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np
import torch

import rr
from rr.errors import RRError
from rr.io import write_atomic
from rr.options import parse_spec

RULES = ("standard", "constant", "review")
MOST = 5_000_000  # parameters: a page takes a second for a sentence
SHAPE = ("vocab_size", "n_layer", "n_head", "d_model", "d_ff", "seq_len")


def net_of(folder: str | Path) -> dict:
    """The net of a finished run, as the page reads it.

    Raises RRError where the page could not compute it: a rule other than standard, constant and
    review, another architecture than GPT-2's, or more than five million parameters.
    """
    model, run, vocabulary = rr.load(folder, device="cpu")
    c = model.config
    name, options = parse_spec(c.rule)
    rule = model.rules[0]
    learned = name == "review" and not options
    if not (learned or name in ("standard", "constant")):
        raise RRError(f"rule {c.rule}: the page computes {', '.join(RULES)} only")
    if (c.flavour, c.values, c.n_loops, c.tied, c.kv_heads) != ("gpt2", "own", 1, True, c.n_head):
        raise RRError(
            f"run {run.id}: the page computes flavour gpt2 with values own and one pass only"
        )
    state = model.state_dict()
    state["token.weight"] = state["token.weight"][: c.vocab_size]
    count = sum(p.numel() for p in state.values())
    if count > MOST:
        raise RRError(f"run {run.id} has {count:,} parameters: expected at most {MOST:,}")
    halves = {n: p.detach().cpu().numpy().astype("<f2") for n, p in state.items()}
    if not all(np.isfinite(x).all() for x in halves.values()):
        raise RRError(
            f"run {run.id} has weights beyond float16's 65,504: the page cannot hold them"
        )
    merges = (vocabulary.folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    table = json.loads((vocabulary.folder / "vocab.json").read_text(encoding="utf-8"))
    tokens = [""] * vocabulary.size
    for token, i in table.items():
        tokens[i] = token
    return {
        "format": 1,
        "run": run.id,
        "rule": c.rule,
        "coefficient": None if learned else rule.coefficient(rule.site),
        "shape": {name: getattr(c, name) for name in SHAPE},
        "eot": vocabulary.eot,
        "tokens": tokens,
        "merges": [line for line in merges if not line.startswith("#version")],
        "tensors": [[n, list(x.shape)] for n, x in halves.items()],
        "weights": base64.b64encode(b"".join(x.tobytes() for x in halves.values())).decode(),
    }


def model_of(net: dict) -> rr.Model:
    """The net of such a file as an `rr.Model`, its weights those of the file."""
    config = rr.ModelConfig(**net["shape"], rule=net["rule"], pad_vocab=False)
    model, at = rr.Model(config), 0
    numbers = np.frombuffer(base64.b64decode(net["weights"]), dtype="<f2").astype(np.float32)
    state = {}
    for name, shape in net["tensors"]:
        count = int(np.prod(shape))
        state[name] = torch.from_numpy(numbers[at : at + count].reshape(shape))
        at += count
    model.load_state_dict(state)
    return model.eval()


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("expected: python -m rrbook.net RUN FILE.json")
    try:
        text = json.dumps(net_of(sys.argv[1]), ensure_ascii=False, separators=(",", ":"))
        write_atomic(Path(sys.argv[2]), text.encode())
    except (RRError, OSError) as error:
        sys.exit(str(error))
    print(f"{sys.argv[2]}: {len(text.encode()) / 1e6:.1f} MB; load it in chapter 2's live network")


if __name__ == "__main__":
    main()
