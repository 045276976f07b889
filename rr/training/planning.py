"""The run that options describe: its id and its text, before anything is read or trained."""

from ..config import RUN_OPTIONS, RRError, Run
from ..data.corpus import default_tokenizer, identity
from ..data.documents import pinned
from ..data.tokenizer import planned_size
from ..model.ladder import parse_rung, specify


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
    parameters of the rung's Review arm. The other options, by keyword, None for the default:

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
    return specify(
        rung,
        rule,
        **content,
        vocab_size=planned_size(tokenizer),
        source={"corpus": pinned(corpus), "tokenizer": tokenizer},
        **options,
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
