"""Share a trained run, and load one that was shared: a line each.

    rrstudy.save_pretrained("runs/3f2a…", "review-60M")       # a folder to be uploaded as it is
    rrstudy.push_to_hub("runs/3f2a…", "somebody/review-60M")  # the same, uploaded
    model = rrstudy.from_pretrained("somebody/review-60M")    # or the folder itself

A shared model is a folder with config.json, model.safetensors, the tokenizer's vocab.json and
merges.txt, and a model card. It contains no code and none is run: a rule in a file, which a changed
configuration may name, is imported only where the caller names it, too.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rr import io
from rr.errors import RRError, install
from rr.io import checked_file, file_bytes
from rr.specs import ModelConfig, Run

try:
    from huggingface_hub import (
        HfApi,
        ModelCard,
        ModelCardData,
        errors,
        get_token,
        hf_hub_download,
    )
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ModuleNotFoundError as error:
    raise RRError(f"sharing and loading models needs {error.name}: {install('hub')}") from None

from rr.data.documents import FINEWEB_EDU, HUB, TINYSTORIES
from rr.data.tokenizer import FILES, Vocabulary
from rr.model.transformer import Model
from rr.model.weights import check_sizes
from rr.residual import as_allowed
from rr.training.loading import load, read_specification
from rr.training.run_folder import finished
from rrstudy.command_line import named_by_options, options, words

# What the hub's library raises for a bad name, a refusal, and a connection that fails.
REFUSED = (
    errors.HfHubHTTPError,
    errors.HFValidationError,
    OSError,
    getattr(errors, "HTTPError", OSError),  # later versions do not derive it from OSError
)
CARD = """---
{{ card_data }}
---

# {{ title }}

A decoder-only language model of {{ params }} parameters, trained by
{% if repo_url %}[`rr`]({{ repo_url }}){% else %}`rr`{% endif %}
with the residual rule `{{ rule }}` and the value rule `{{ values }}`,
on {{ corpus }}.

```python
import rrstudy  # {{ install }}

model = rrstudy.from_pretrained("{{ repository }}")
ids = model.vocabulary.encode("Once upon a time")
```

| | |
|---|---|
{% for name, value in facts.items() %}| {{ name }} | {{ value }} |
{% endfor %}
The loss is in nats per token, on held-out text of the corpus above. It is one run of one seed: this
card does not know how much other seeds differ.
{% if command %} The command that trained it:

```bash
{{ command }}
```
{% else %} It has settings that no option of `rr train` gives, so no command trains it again.
{% endif %}"""


def home() -> str | None:
    """The project's address from the installed package's metadata, or None."""
    try:
        urls = metadata.metadata("review-residuals").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    return dict(url.split(", ", 1) for url in urls).get("Repository")


class Pretrained(Model):
    """A model that was shared, with its tokenizer: `vocabulary` turns text into ids and back."""

    vocabulary: Vocabulary


def _file(name: str, file: str, revision: str | None) -> Path:
    """The path of a file in the model's folder, or downloaded from its repository."""
    if Path(name).is_dir():
        path = Path(name) / file
    else:
        path = Path(hf_hub_download(name, file, revision=revision))
    return checked_file(path, sys.maxsize)


@contextlib.contextmanager
def _errors_name(model: str) -> Iterator[None]:
    """Turn what goes wrong with the files of a shared model into one line that names the model."""
    try:
        yield
    except REFUSED as error:
        line = str(error).strip().partition("\n")[0]
        raise RRError(
            f"no model {model!r} was found ({line}): give a folder written by "
            "rrstudy.save_pretrained, or a repository of the hub"
        ) from None
    except (RRError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise RRError(f"{model} is not a model of rr, or is corrupt ({line})") from None


def save_pretrained(run: str | Path, to: str | Path, license: str | None = None) -> Path:
    """Write an ended run's weights, configuration, tokenizer and model card into the folder `to`.

    run: the folder of a run, as `rr.train` returns it. license: of the weights, as the hub names it
    ("apache-2.0", "cc-by-4.0"). Without it the card says apache-2.0 for models of the built-in
    fables, and unknown for others: it is the corpus that decides. A card that is there is written
    again.

    Returns `to`, with config.json, model.safetensors, vocab.json, merges.txt and README.md: no
    code. `rrstudy.from_pretrained` reads it. Raises RRError where `run` is no run, has not ended or
    diverged, or its rule is not part of rr, so that others lack it.

    Example:
        >>> import tempfile
        >>> import rr, rrstudy
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> run = rr.plan(tiny, steps=2, batch=1, eval_batches=1)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     folder = rr.train(run, out, log=lambda line: None)
        ...     saved = rrstudy.save_pretrained(folder, f"{out}/model")
        ...     print((saved / "config.json").exists())
        True
    """
    return _save(run, Path(to), license, "THIS-REPOSITORY")


def push_to_hub(
    run: str | Path, repository: str, license: str | None = None, private: bool = True
) -> str:
    """Upload what `rrstudy.save_pretrained` writes of a run to a model repository of the hub.

    run: the folder of a run. repository: "somebody/review-60M", made if it is missing; one that is
    there stays as visible as it is. license: as `rrstudy.save_pretrained` takes it. private: a new
    repository is for its owner alone to see.

    Returns the address of the commit. Raises RRError without a token, where the hub refuses, and
    where `rrstudy.save_pretrained` does.

    Example:
        >>> import rr, rrstudy
        >>> try:
        ...     rrstudy.push_to_hub("no-such-run", "somebody/review-60M")
        ... except rr.RRError as error:
        ...     print(type(error).__name__)
        RRError
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = _save(run, Path(folder), license, repository)
        if get_token() is None:
            raise RRError(
                "uploading needs a token of the hub with the right to write: `hf auth login`, or "
                "set HF_TOKEN"
            )
        api = HfApi()
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository, folder_path=saved, commit_message=f"Run {Path(run).name}"
            )
        except REFUSED as error:
            line = str(error).strip().partition("\n")[0]
            raise RRError(f"the hub did not take {repository!r}: {line}") from None
    return str(commit.commit_url)


def _save(run: str | Path, to: Path, license: str | None, repository: str) -> Path:
    """`save_pretrained`, with a card that names this repository."""
    _, specification = read_specification(Path(run))
    contents = (
        (specification.rule, specification.rule_content),
        (specification.values, specification.values_content),
    )
    own = [spec for spec, sha256 in contents if sha256]
    if own:
        raise RRError(
            f"{' and '.join(own)} is not part of rr, so that others could not load the model: "
            "only runs of rr's own rules can be shared"
        )
    if (result := finished(Path(run))) is None:
        raise RRError(
            f"{run} has not ended, so its card could not say what it is: rr train ends it"
        )
    if result["status"] == "diverged":
        raise RRError(f"{run} diverged: its weights are not a trained model")
    model, specification, vocabulary = load(run, device="cpu")
    card = _card(model, specification, result, license, repository)
    try:
        to.mkdir(parents=True, exist_ok=True)
        # goes first and comes last: until then the folder is no model, and not the old one in part
        (to / "config.json").unlink(missing_ok=True)
        save_file(model.state_dict(), to / "model.safetensors")
        for name in FILES:
            io.write_atomic(to / name, (vocabulary.folder / name).read_bytes())
        card.save(to / "README.md")
        io.write_json(to / "config.json", asdict(model.config))
    except (OSError, SafetensorError) as error:
        line = getattr(error, "strerror", None) or error
        raise RRError(f"cannot write to {to} ({line}): name another folder") from None
    return to


def hub_dataset(corpus: str) -> str | None:
    """The data set of the hub that a corpus is, `org/name`; None for fables and files."""
    named = {"tinystories": TINYSTORIES, "fineweb-edu": FINEWEB_EDU}
    hub = HUB.fullmatch(corpus)
    return hub[1] if hub else named.get(corpus)


def _card(
    model: Model, run: Run, result: Mapping[str, Any], license: str | None, repository: str
) -> ModelCard:
    """The model card of a run; result: the content of its result.json."""
    names = (
        "rung",
        "corpus",
        "tokenizer",
        "seed",
        "protocol",
        "precision",
        "steps",
        "tokens",
        "val_loss",
        "ece",
        "status",
        "weights_sha256",
    )
    sizes = ("n_layer", "d_model", "n_head", "d_ff", "seq_len", "vocab_size", "n_loops")
    corpus = run.source.get("corpus", run.corpus)
    dataset = hub_dataset(corpus)
    given = options(run)
    # where files lay is nobody else's business
    if str(given["corpus"]).startswith("file:"):
        given["corpus"] = "file:PATH"
    if Path(str(given.get("tokenizer", ""))).is_absolute():
        given["tokenizer"] = "PATH"
    front_matter = ModelCardData(
        library_name="review-residuals",
        pipeline_tag="text-generation",
        tags=["residual-connections", "pytorch", "language-model"],
        license=license or ("apache-2.0" if corpus == "fables" else "unknown"),
        datasets=[dataset] if dataset else None,
    )
    return ModelCard.from_template(
        front_matter,
        template_str=CARD,
        repo_url=home(),
        install=install("hub", home()),
        repository=repository,
        title=f"{run.rung} · {run.rule}",
        params=f"{result['params']:,}",
        rule=run.rule,
        values=run.values,
        corpus=result["corpus"],
        command=words(given, "train", "runs") if named_by_options(run) else "",
        facts={"run": run.id}
        | {name: getattr(model.config, name) for name in sizes}
        | {name: result[name] for name in names if name in result},
    )


def from_pretrained(
    name: str | Path, revision: str | None = None, allow_rule: str | Sequence[str] = ()
) -> Pretrained:
    """The model in a folder that `rrstudy.save_pretrained` wrote, or in a repository of the hub.

    name: the folder, or "somebody/review-60M". revision: a branch, tag or commit of the repository;
    a commit always gives the same weights. allow_rule: a rule in a file, `path.py:Class`, that its
    configuration names and that may be imported; without it no file is imported.

    Returns an `rr.Model` in evaluation mode whose attribute `vocabulary` turns text into token ids
    and back. Raises RRError where there is no such model, it is corrupt, or its sizes are not those
    of its configuration; no weights are then allocated.

    Example:
        >>> import tempfile
        >>> import rr, rrstudy
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> run = rr.plan(tiny, steps=2, batch=1, eval_batches=1)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     folder = rr.train(run, out, log=lambda line: None)
        ...     model = rrstudy.save_pretrained(folder, f"{out}/model")
        ...     print(rrstudy.from_pretrained(model).config.d_model)
        16
    """
    name = str(name)
    with _errors_name(name):
        config = ModelConfig(**json.loads(file_bytes(_file(name, "config.json", revision))))
    read = [(config.rule, None), (config.values, None)]  # no content is recorded there
    rule, values = as_allowed(read, allow_rule, name)
    config = replace(config, rule=rule, values=values)
    with _errors_name(name):
        with safe_open(_file(name, "model.safetensors", revision), "pt") as weights:
            names = weights.keys()
            check_sizes(config, {key: weights.get_slice(key).get_shape() for key in names})
            model = Pretrained(config)
            model.load_state_dict({key: weights.get_tensor(key) for key in names})
        for file in FILES:  # each is fetched; they lie in one folder
            folder = _file(name, file, revision).parent
    model.vocabulary = Vocabulary(name, name, folder)
    if model.vocabulary.size != config.vocab_size:
        raise RRError(
            f"{name} is corrupt (its tokenizer has {model.vocabulary.size} tokens, its model "
            f"{config.vocab_size})"
        )
    return model.eval()
