"""The run that options describe: its id and its text, before anything is read or trained.

Nothing here imports torch: `rr.model.shapes`.
"""

from pathlib import Path

from ..config import RRError, Run
from ..data.corpus import default_tokenizer, identity
from ..data.tokenizer import planned_size
from ..model.ladder import parse_rung, specify


def plan(
    rung: str = "nano",
    rule: str = "review",
    *,
    corpus: str | None = None,
    tokenizer: str | None = None,
    cache: str | Path | None = None,
    **options,
) -> Run:
    """The run that these options describe; nothing is downloaded, tokenised or trained.

    corpus, tokenizer: see `text_of`, which chooses where one is None.
    Options: values, loops, flavour, seed, protocol, steps, budgets, warmup, lr, batch,
    eval_batches, precision, depth_lr, optimizer.

    Example:
        >>> import rr
        >>> run = rr.plan("nano", "highway", steps=10)
        >>> run.model.d_model, run.recipe.steps
        (128, 10)
    """
    corpus, tokenizer = text_of(rung, corpus, tokenizer)
    return specify(
        rung,
        rule,
        **identity(corpus, tokenizer, cache),
        vocab_size=planned_size(tokenizer),
        source={"corpus": corpus, "tokenizer": tokenizer},
        **options,
    )


def text_of(rung: str, corpus: str | None, tokenizer: str | None) -> tuple[str, str]:
    """The corpus and tokenizer of a run, with defaults where one of them is None.

    `fables` with bpe:1024 for nano, mini and their variants; GPT-2's tokenizer for other text. A
    published rung on fables' 1,024 tokens would be another model under the same name, so RRError
    asks for its text, and on fables for the tokenizer.
    """
    published = parse_rung(rung)[0].published
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
