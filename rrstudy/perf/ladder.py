"""The ladder of sizes as a table, and which runs of a study are compared with each other."""

from rr.model.costs import count, flops_per_token, rule_params
from rr.model.sizes import RUNGS, arm, parse_rung
from rr.specs import Run
from rr.training.planning import recipe

PAPER_ARMS = ("review", "highway", "standard")


def table(protocol: str = "clean", rules: tuple[str, ...] | None = None) -> list[dict]:
    """One row per rung and arm: shape, exact counts, cost and budget."""
    rows = []
    for name, rung in RUNGS.items():
        if protocol == "paper" and not rung.published:
            continue
        for rule in rules or PAPER_ARMS:
            config, plan = arm(name, rule, protocol=protocol), recipe(name, protocol)
            rows.append(
                {
                    "rung": name,
                    "rule": rule,
                    "d_model": config.d_model,
                    "d_ff": config.d_ff,
                    "n_layer": config.n_layer,
                    "n_head": config.n_head,
                    "params": count(config),
                    "gate_params": rule_params(config),
                    "flops_per_token": flops_per_token(config),
                    "steps": plan.steps,
                    "tokens": plan.steps * plan.batch * config.seq_len,
                }
            )
    return rows


def group(run: Run) -> tuple:
    """The key of a comparison: two runs that differ in their rule or in tuning alone have the same.

    Returns (size, rung, protocol, corpus, tokenizer, steps, budgets, seed). A sweep orders its
    cells by it, so that all arms of one size and seed are trained together. Raises RRError for an
    unknown rung.
    """
    rung, _ = parse_rung(run.rung)  # not the arm's width, which protocol `paper` changes
    size = rung.n_layer * rung.d_model**2
    text = run.source.get("corpus", run.corpus), run.source.get("tokenizer", run.tokenizer)
    steps = run.recipe.steps, run.recipe.budgets or ()
    return size, run.rung, run.protocol, *text, *steps, run.seed
