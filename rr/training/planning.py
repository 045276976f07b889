"""The run that options describe: its recipe, id and text, before anything is read or trained."""

from collections.abc import Sequence
from typing import Any

from .. import residual
from ..data.corpus import default_tokenizer, identity
from ..data.documents import pinned
from ..data.tokenizer import planned_size
from ..errors import RRError, nearest, positive
from ..model.sizes import arm, canonical_rung, parse_rung
from ..options import options_of
from ..specs import RUN_OPTIONS, Recipe, Run


def plan(
    rung: str = "nano",
    rule: str = "review",
    *,
    corpus: str | None = None,
    tokenizer: str | None = None,
    **options,
) -> Run:
    """The run that these options describe; nothing is downloaded, tokenised or trained.

    rung: the size of the model: "nano" and "mini" (minutes on a CPU), "60M", "150M", "320M", "590M"
    and "1B" (the study's). "nano:d_model=16,n_layer=1" takes these sizes instead of the rung's:
    d_model, n_layer, n_head, d_ff, seq_len, n_kv_head. rule: a residual rule with its options, as
    in `rr.residual.RULES`, or one of your own, "my_rule.py:Class", whose file is then allowed to be
    imported. corpus: as `rr.open_corpus` takes it; None: "fables", which ships with `rr` (a
    published rung needs one named). tokenizer: likewise; None: "bpe:1024" for fables, else "gpt2".

    Where the rung's name overrides no size, a smaller arm than Review is widened to the number of
    parameters of the rung's Review arm with the same value rule. The other options, by keyword,
    None for the default:

    OPTIONS

    Raises RRError for an unknown name or option, and for values that no run can have.

    Example:
        >>> import rr
        >>> run = rr.plan("nano", "highway", steps=10)
        >>> run.model.d_model, run.recipe.steps
        (128, 10)
    """
    corpus, tokenizer = text_of(rung, corpus, tokenizer)
    content = identity(corpus, tokenizer)
    given: Any = {k: v for k, v in options.items() if v is not None or k not in RUN_OPTIONS}
    return specify(
        rung,
        rule,
        **content,
        vocab_size=planned_size(tokenizer),
        source={"corpus": pinned(corpus), "tokenizer": tokenizer},
        **given,
    )


# The declarations are the documentation: a list of them, where the text above says OPTIONS.
_LISTED = "\n".join(
    f"    * `{name}`: {option.help}"
    for name, option in RUN_OPTIONS.items()
    if name not in ("rung", "rule", "corpus", "tokenizer")
)
plan.__doc__ = (plan.__doc__ or "").replace("    OPTIONS", _LISTED)


def text_of(rung: str, corpus: str | None, tokenizer: str | None) -> tuple[str, str]:
    """The corpus and tokenizer of a run, with defaults where one of them is None.

    `fables` with bpe:1024 for nano, mini and their variants; GPT-2's tokenizer for other text. A
    published rung on fables' 1,024 tokens would be another model under the same name, so RRError
    asks for its text, and on fables for the tokenizer.
    """
    published = parse_rung(rung)[0].published
    if not isinstance(corpus, str | None) or not isinstance(tokenizer, str | None):
        raise RRError(f"corpus and tokenizer must be text, got {corpus!r} and {tokenizer!r}")
    if published and corpus is None:
        raise RRError(
            f"rung {rung} needs a text: give --corpus tinystories (GPT-2's tokenizer, the "
            "published size), or another --corpus with its --tokenizer"
        )
    if published and corpus == "fables" and not tokenizer:
        raise RRError(
            f"rung {rung} on fables needs a tokenizer: give --tokenizer gpt2 (the published "
            "size) or bpe:N (another size)"
        )
    corpus = "fables" if corpus is None else corpus
    return corpus, tokenizer or default_tokenizer(corpus)


def recipe(
    spec: str,
    protocol: str = "clean",
    *,
    steps: int | None = None,
    budgets: Sequence[int] | None = None,
    **chosen,
) -> Recipe:
    """The rung's recipe under a protocol, with the caller's choices; None leaves one to them.

    budgets: steps of each decay branch, instead of `steps`; a single budget is `steps`. The others
    are the options that `Recipe` declares.
    """
    rung, _ = parse_rung(spec)
    if budgets is not None:
        if steps is not None:
            raise RRError(
                f"steps {steps} beside budgets: give one of them; the longest budget is the steps"
            )
        if not isinstance(budgets, list | tuple) or not budgets:
            raise RRError(f"budgets must be a list of numbers of steps, got {budgets!r}")
        steps = budgets[-1]
    steps = rung.steps if steps is None else steps
    positive("steps", steps)
    known = options_of(Recipe)
    for name in chosen:
        if name not in known:
            raise RRError(f"unknown option {name!r}: {nearest(name, RUN_OPTIONS)}")
    usual: dict[str, Any] = {"batch": rung.batch, "lr": rung.lr}
    if protocol == "paper":
        usual = {"batch": 64, "lr": 2e-4, "precision": "tf32"}
        usual |= {"schedule": "cosine", "decay_all": True}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    usual["warmup"] = usual_warmup(protocol, steps)
    branches = tuple(budgets) if budgets is not None and len(budgets) > 1 else None
    return Recipe(steps=steps, budgets=branches, **(usual | chosen))


def usual_warmup(protocol: str, steps: int) -> int:
    """Steps of warm-up where none are chosen: 500, in a short run a twentieth of it.

    paper: a twelfth, which leaves the study's own runs, of 6,000 steps and more, their 500.
    """
    return max(1, min(500, steps // (12 if protocol == "paper" else 20)))


def specify(
    rung: str = "nano",
    rule: str = "review",
    *,
    corpus: str,
    tokenizer: str,
    vocab_size: int,
    values: str = "own",
    loops: int = 1,
    flavour: str = "gpt2",
    seed: int = 0,
    protocol: str = "clean",
    source: dict | None = None,
    **overrides,
) -> Run:
    """The run of one arm; corpus and tokenizer are content identities. See `rr.plan`.

    rule, values: named by the caller, so that their file may be imported.
    """
    residual.allow_rule(rule, values)
    rule, values = residual.canonical(rule), residual.canonical(values, "values")
    return Run(
        rung=canonical_rung(rung),
        seed=seed,
        protocol=protocol,
        corpus=corpus,
        tokenizer=tokenizer,
        model=arm(rung, rule, vocab_size, protocol, values, loops, flavour),
        recipe=recipe(rung, protocol, **overrides),
        rule_content=residual.content(rule),
        values_content=residual.content(values, "values"),
        source=source or {},
    )
