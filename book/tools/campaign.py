"""Run the studies that data/measured/ plans, losing nothing.

    python book/tools/campaign.py e1 --corpus file:TINYSTORIES --out runs/e1
    python book/tools/campaign.py e1 --corpus file:TINYSTORIES --out runs/e1 --dry-run

nano-rules   every registered rule and value rule at `nano`, three paired seeds, one budget
mini-arms    eight arms at `mini`: the best of three rates each, then five paired seeds
e1 ... e6    the second plan, and what was added beside it: data/measured/second_plan.md says what
             each of them asks
f1 ... f5    the third plan, likewise: data/measured/third_plan.md
g1 ... g5, f6-pilot, f6    the fourth: data/measured/fourth_plan.md

A study is lists of runs, trained by `rrstudy.sweep`: those that search rates, then those that are
reported. What has finished is skipped and what was cut off resumes, so the same command is given
again until nothing is missing. `--dry-run` prints the commands that are known so far.
"""

import argparse
import math
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean as mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from studies import Options, Study
from studies_later import STUDIES

from rr.errors import Interrupted, RRError, RunFailed
from rr.training.run_folder import finished
from rrbook.stats.rates import basin, before_cliff
from rrstudy.sweep import Cell, Runner, cells, commands, sweep

EXTENSIONS = 3  # rates that may be added beyond an edge that wins


class Campaign:
    """Trains lists of runs in the folder `out` and reads their held-out losses."""

    def __init__(
        self,
        corpus: str,
        tokenizer: str | None,
        out: Path,
        jobs: int,
        machine: dict[str, str | int | None],
        dry: bool,
    ) -> None:
        self.corpus, self.tokenizer = corpus, tokenizer  # where a study's gpt2 is, if not None
        self.out, self.jobs, self.machine, self.dry = out, jobs, machine, dry
        self.missing = 0

    def cell(self, options: Options) -> Cell:
        """The run of these options."""
        given = {**options, "corpus": self.corpus}
        if given.get("tokenizer") == "gpt2" and self.tokenizer:
            given["tokenizer"] = self.tokenizer
        lists = {name: value if value is True else [value] for name, value in given.items()}
        return cells(lists, say=print)[0]

    def run(self, runs: Iterable[Options]) -> list[float | None]:
        """The held-out loss of each run, infinite where it diverged, None where it is missing."""
        plan = [self.cell(options) for options in runs]
        if self.dry:
            for command in commands(plan, Runner("direct", self.out, self.machine)):
                print(shlex.join(command))
            return [None] * len(plan)
        try:
            sweep(plan, self.out, runner="direct", jobs=self.jobs, machine=self.machine)
        except RunFailed as error:  # some diverged, or are missing
            print(error, flush=True)
        return [self._loss(cell) for cell in plan]

    def _loss(self, cell: Cell) -> float | None:
        try:
            result = finished(self.out / cell.id)
        except RunFailed:  # a corrupt one, which the sweep has named
            result = None
        if result is None:
            self.missing += 1
            return None
        return math.inf if result["val_loss"] is None else result["val_loss"]

    def study(self, study: Study) -> None:
        """Choose each arm's learning rate, then run the reported seeds, seed by seed.

        In that order whatever is cut off leaves complete pairs.
        """
        searched = {name for name, arm in study.arms.items() if study.rates and "lr" not in arm}
        rates = {name: {"lr": rate} for name, rate in self._choose(study, searched).items()}
        missing = searched - rates.keys()
        if missing and not self.dry:
            return
        self.run(
            {**study.common, **study.reporting, **arm, **rates.get(name, {}), "seed": seed}
            for seed in study.seeds
            for name, arm in study.arms.items()
            if name not in missing
        )

    def _choose(self, study: Study, searched: set[str]) -> dict[str, float]:
        """The rate of each arm that is searched, from the mean loss over the search's seeds."""
        chosen = {}
        for name, arm in study.arms.items():
            if name not in searched:
                continue
            tried = self._search(study, arm, study.rates)
            if tried is None:
                continue
            means = {lr: mean(losses) for lr, losses in tried.items()}
            points = means
            if math.isfinite(study.cliff):
                points = {lr: means[lr] for lr in before_cliff(tried, study.cliff)}
            best = min(means, key=means.__getitem__)
            if study.vertex and len(points) >= 3:
                best = float(f"{basin(points).lr:.3g}")
            chosen[name] = best
            shown = ", ".join(
                f"{lr:g}: {loss:.4f}" + ("" if lr in points else " no point")
                for lr, loss in sorted(means.items())
            )
            print(f"{name}: lr {best:g} ({shown})", flush=True)
        return chosen

    def _search(
        self, study: Study, arm: Options, rates: tuple[float, ...]
    ) -> dict[float, list[float]] | None:
        """Losses by rate, one per seed; while an edge of their means wins, one rate more outward.

        None where a run is missing.
        """
        tried: dict[float, list[float]] = {}
        step = study.rates[1] / study.rates[0]
        for _ in range(EXTENSIONS + 1):
            cells = [
                {**study.common, **study.searching, **arm, "lr": rate, "seed": seed}
                for rate in rates
                for seed in study.rate_seeds
            ]
            results = [loss for loss in self.run(cells) if loss is not None]
            if len(results) < len(cells):
                return None
            per = len(study.rate_seeds)
            tried |= {lr: results[i * per : (i + 1) * per] for i, lr in enumerate(rates)}
            best = min(tried, key=lambda lr: mean(tried[lr]))
            if best == max(tried):
                rates = (float(f"{best * step:.3g}"),)
            elif best == min(tried):
                rates = (float(f"{best / step:.3g}"),)
            else:
                break
        return tried


def main() -> int:
    """The command line; 3 where a run is missing, 2 for bad input, 130 where it was stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=STUDIES)
    parser.add_argument("--corpus", required=True, help="as `rr train` takes it")
    parser.add_argument("--tokenizer", help="folder of GPT-2's vocab.json and merges.txt, for e6")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="of each run (default: 1)")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    study = STUDIES[given.name]()
    machine = {"threads": given.threads, "backend": study.path}
    campaign = Campaign(
        given.corpus, given.tokenizer, given.out, given.jobs, machine, given.dry_run
    )
    try:
        campaign.study(study)
    except (Interrupted, RRError) as error:
        print(f"campaign: {error}", file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 2
    if not given.dry_run:
        print(f"campaign: {campaign.missing} runs missing")
    return 3 if campaign.missing else 0


if __name__ == "__main__":
    sys.exit(main())
