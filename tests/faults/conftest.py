"""What the fault tests share: a small text, a process to fork children from, a finished run."""

from pathlib import Path

import pytest
from nursery import PROTOCOLS, Nursery, only, outcome

SHAPE = "nano:n_layer=2,d_model=32,n_head=2,seq_len=32"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    names = "Ada Ben Cleo Dov Eve Fay Gus Hal Ida Jon".split()
    lines = [f"{name} sees the sea {i % 13} times." for i in range(40) for name in names]
    path = tmp_path_factory.mktemp("text") / "small.txt"
    path.write_text("\n<|endoftext|>\n".join(lines))
    return f"file:{path}"


@pytest.fixture(scope="session")
def nursery(tmp_path_factory) -> Nursery:
    born = Nursery(tmp_path_factory.mktemp("cache"))
    yield born
    born.close()


@pytest.fixture(scope="session")
def command(corpus):
    """command(out, protocol="clean", steps=40) -> the words of a run that takes about a second."""

    def words(out: Path, protocol: str = "clean", steps: int = 40, **options: object) -> list[str]:
        given = {"rung": SHAPE, "corpus": corpus, "tokenizer": "bpe:300", "batch": 2,
                 "steps": steps, "threads": 1, "save-every": 0.05, "protocol": protocol,
                 "out": out} | options
        if protocol == "paper":
            given.setdefault("eval-batches", 6)
        return ["train", *(str(w) for key, value in given.items() for w in (f"--{key}", value))]

    return words


@pytest.fixture(scope="session")
def undisturbed(nursery, command, tmp_path_factory):
    """protocol -> (outcome, longest stay in each phase in s), of a run that was left alone."""
    found = {}
    for protocol in PROTOCOLS:
        for again in ("first", "second"):  # the first one also makes the cache
            out = tmp_path_factory.mktemp("undisturbed") / again
            run = nursery.rr(*command(out, protocol))
            assert run.code == 0, run.err
            told = outcome(only(out))
            assert found.setdefault(protocol, (told, run.durations()))[0] == told
        found[protocol] = told, run.durations()
    return found
