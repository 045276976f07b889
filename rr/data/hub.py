"""Data sets of the Hugging Face hub as corpora, and whether the hub can be reached."""

import os
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from ..errors import RRError, install
from .documents import EOT, Source
from .files import documents_of

PATIENCE = 5.0  # seconds that the hub may take to answer
WORKS_OFFLINE = "fables and file:PATH work without a network"
_NEEDS_HUB = f"the corpus {{}} needs datasets ({install('hub')}); {WORKS_OFFLINE}"


@cache
def commit(repository: str, revision: str) -> str:
    """The commit of a branch or tag: of the hub, or of its local cache with HF_HUB_OFFLINE."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise RRError(_NEEDS_HUB.format(repository)) from error
    require_hub(f"the corpus {repository}", WORKS_OFFLINE)
    try:  # without a file to download it answers with the commit's folder
        folder = snapshot_download(
            repository, repo_type="dataset", revision=revision, allow_patterns=[]
        )
    except Exception as error:  # the library raises many kinds
        raise _not_loaded(repository, revision, error) from error
    return Path(folder).name


def _not_loaded(repository: str, revision: str, error: Exception) -> RRError:
    line = " ".join((str(error).strip() or type(error).__name__).split())[:300]
    hint = "org/name:config names a configuration; " if "onfig" in line else ""
    return RRError(
        f"cannot load {repository}@{revision} from the hub: {line}; {hint}{WORKS_OFFLINE}"
    )


def hub_source(
    repository: str,
    revision: str,
    limit: int | None,
    name: str,
    file: str | None = None,
    config: str | None = None,
) -> Source:
    """A data set of the hub: its train split, or the one `file` of it, up to row `limit`."""
    identity = f"hub {repository}"
    if config:
        identity += f":{config}"
    identity += f"@{revision}"
    if file:
        identity += f"/{file}"
    if limit:
        identity += f"[:{limit}]"
    changes: dict[str, Counter[str]] = {}
    read = partial(_read_hub, changes, repository, revision, limit, file, config)
    return Source(name, identity, read, changes=changes)


def _read_hub(
    changes: dict[str, Counter[str]],
    repository: str,
    revision: str,
    limit: int | None,
    file: str | None,
    config: str | None,
) -> Iterator[str]:
    rows = hub_rows(repository, revision, limit, file, config)
    changed = changes[repository] = Counter()
    if "text" not in rows.column_names:
        raise RRError(f"{repository} has no 'text' column, but {', '.join(rows.column_names)}")
    for batch in rows.select_columns(["text"]).iter(batch_size=1024):
        column: list[object] = dict(batch)["text"]
        for row in column:
            if not isinstance(row, str):
                raise RRError(f"{repository}: a value in its 'text' column is not a string")
            if limit and EOT not in row:  # as the study read it, with stories that are empty
                yield row
            else:
                yield from documents_of(row, changed)


@cache
def hub_rows(
    repository: str, revision: str, limit: int | None, file: str | None, config: str | None
):
    """The hub's train split, downloaded once; a corpus is read several times."""
    try:
        import datasets
    except ImportError as error:
        raise RRError(_NEEDS_HUB.format(repository)) from error
    require_hub(f"the corpus {repository}", WORKS_OFFLINE)
    split = f"train[:{limit}]" if limit else "train"
    try:
        return datasets.load_dataset(
            repository, name=config, revision=revision, split=split, data_files=file
        )
    except Exception as error:  # the library raises many kinds, for a name as for a network
        raise _not_loaded(repository, revision, error) from error


def require_hub(what: str, instead: str) -> None:
    """Raise RRError, within `PATIENCE` seconds, where the hub cannot be reached.

    (The hub's own libraries retry for 24 s.) what: what needs the hub; instead: what works without
    it. With HF_HUB_OFFLINE set nothing is requested: the libraries then read their local cache.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return
    from huggingface_hub import constants

    problems: list[str] = []  # one, "" where the hub answered

    def ask() -> None:
        try:
            request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
            urllib.request.urlopen(request, timeout=PATIENCE).close()
            problems.append("")
        except urllib.error.HTTPError as error:
            problems.append("" if error.code < 500 and error.code != 407 else f"{error}")
        except OSError as error:
            problems.append(str(getattr(error, "reason", error)))

    # In a thread, because name resolution has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    problem = problems[0] if problems else f"no answer in {PATIENCE:.0f} s"
    if problem:
        raise RRError(f"{what} comes from the hub, which cannot be reached ({problem}): {instead}")
