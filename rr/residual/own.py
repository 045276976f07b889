"""Users' own rules: which files may be imported, and the content that a run's id has of a rule.

A rule that is part of `rr` is identified by its name, because the version of the package determines
what it does. A rule from elsewhere can change under its name from one cell of a notebook to the
next. So a run's id contains the SHA-256 of its content, and a changed rule is another run.

A file is code, and a shared run or model can name any file. So a file is imported only after the
caller has named it: `allow` records its content, and every other file is refused.
"""

import hashlib
import shlex
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import RRError
from ..io import MIB, file_bytes
from ..options import parse_spec


def ships(cls: type) -> bool:
    """Whether a class belongs to this package."""
    return cls.__module__.split(".")[0] == __name__.split(".")[0]


# Files that may be imported: path as written -> content when the caller named it.
_ALLOWED: dict[str, bytes] = {}


def allow(*specs: str) -> None:
    """Allow the files of these rules, `path.py:Class`, to be imported with their current content.

    A file is code: so allow only names that you give yourself, never one that was read from a file.
    Rules without a file are always allowed. Raises RRError where there is no such file, or it is
    larger than 1 MiB.

    Example:
        >>> import rr
        >>> rr.allow_rule("review:rank=8")  # ships with rr: no file to allow
        >>> try:
        ...     rr.allow_rule("no_such_file.py:Mine")
        ... except rr.RRError:
        ...     print("there is no such file")
        there is no such file
    """
    for spec in specs:
        name, _ = parse_spec(spec)
        if ".py:" in name:
            path, _ = _parts(name)
            _ALLOWED[path] = _bytes(path)


def as_allowed(
    read: Sequence[tuple[str, str | None]], given: str | Sequence[str], origin: str
) -> list[str]:
    """Rules that were read from a file, with their own files replaced by those the caller allows.

    read: each rule with the recorded SHA-256 of its content, "" for none and None where none is
    ever recorded. given: the rules that the caller allows, `path.py:Class` each. origin: what they
    were read from, for messages.

    A rule in a file needs one of the same class whose file has that content; without one, a file of
    that content which was allowed before. The path that was read is opened only to report its
    SHA-256. Raises RRError for any other rule in a file, and for an allowed rule that is not used.

    Example:
        >>> from rr.residual import as_allowed
        >>> as_allowed([("review", "")], (), "run.json")
        ['review']
    """
    given = [given] if isinstance(given, str) else list(given)
    for allowed in given:
        name, options = parse_spec(allowed)
        if ".py:" not in name or options:
            raise RRError(
                f"rule {allowed!r} cannot be allowed: expected path.py:Class without options"
            )
    named: dict[str, bytes] = {}
    specs = [_as_allowed(spec, was, given, named, origin) for spec, was in read]
    for allowed in given:
        if all(parse_spec(spec)[0] != allowed for spec in specs):
            raise RRError(f"{origin} names no rule {allowed}: it names {' and '.join(specs)}")
    _ALLOWED.update(named)  # all or none: after an error nothing more may be imported
    return specs


def _as_allowed(
    spec: str, was: str | None, given: list[str], named: dict[str, bytes], origin: str
) -> str:
    """One rule of `as_allowed`; adds the content of the file it needs to `named`."""
    name, _ = parse_spec(spec)
    if ".py:" not in name:
        return spec
    if was == "":
        raise RRError(f"{origin} names a rule in a file, {name!r}, without the file's SHA-256")
    _, class_name = _parts(name)
    for allowed in given:
        path, other = _parts(allowed)
        if other == class_name:
            code = _bytes(path)
            current = _sha256(code)
            if was not in (None, current):
                raise RRError(
                    f"{allowed} is not the rule of {origin}: its file has SHA-256 {current}, and "
                    f"{was} was recorded: restore the file"
                )
            named[path] = code
            return spec.replace(name, allowed, 1)
    for path, code in _ALLOWED.items():
        if was == _sha256(code):
            return spec.replace(name, f"{path}:{class_name}", 1)
    raise RRError(_refusal(name, origin, was, f"--rule {shlex.quote(name)} or allow_rule={name!r}"))


def _refusal(name: str, origin: str, was: str | None, advice: str) -> str:
    """The message of a refused rule: the file, its SHA-256, and how to allow it."""
    path, _ = _parts(name)
    if not name.isprintable():  # a terminal would show something else
        return f"{origin} names a rule in a file, {name!r}: expected a path of printable characters"
    current = ""
    try:
        current = _sha256(_bytes(path))
        file_words = f"{path} has SHA-256 {current}"
    except RRError as error:
        file_words = str(error).partition(":")[0]
    recorded = ""
    if was:
        recorded = ", as recorded" if was == current else f"; recorded was {was}"
    return (
        f"{origin} names a rule in a file, {name}, and none of its code was run "
        f"({file_words}{recorded}): read the file, then allow it: {advice}"
    )


def load(name: str) -> Any:
    """The object that `path.py:Name` names in a user's file; None where there is none.

    The code that runs is the file's content when it was allowed. Raises RRError where it was not
    allowed, cannot be imported, or uses another file that is not installed.
    """
    path, class_name = _parts(name)
    code = _allowed_bytes(name)
    try:
        module = _module(path, code)
    except (Exception, SystemExit) as error:  # any error of the file becomes one line
        raise RRError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    from .class_content import check_file

    check_file(name, module)
    return getattr(module, class_name, None)


def content(spec: str, cls: type) -> str:
    """SHA-256 of a rule's content, in hexadecimal; "" for a rule that is part of `rr`.

    Of a rule in a file: the file's bytes. Of a class that was registered from elsewhere, as in a
    notebook: see `class_sha256`.
    """
    name, _ = parse_spec(spec)
    if ".py:" in name:
        return _sha256(_allowed_bytes(name))
    if ships(cls):
        return ""
    from .class_content import class_sha256

    return class_sha256(name, cls)


def _parts(name: str) -> tuple[str, str]:
    path, _, class_name = name.rpartition(":")
    return path, class_name


def _bytes(path: str) -> bytes:
    try:
        return file_bytes(Path(path), MIB)
    except (OSError, ValueError):
        raise RRError(
            f"no file {path!r} of at most 1 MiB: a rule of your own is written my_rule.py:Class"
        ) from None


def _sha256(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


def _allowed_bytes(name: str) -> bytes:
    code = _ALLOWED.get(_parts(name)[0])
    if code is None:
        raise RRError(_refusal(name, "a model or a run", None, f"rr.allow_rule({name!r})"))
    return code


@lru_cache(maxsize=32)
def _module(path: str, code: bytes) -> ModuleType:
    """A user's file as a module, executed once per content.

    So all sublayers share one class, and the code that runs is the code in the run's id. It stands
    in sys.modules, where dataclasses and compilers look for it, under a name that is no other's.
    """
    module = ModuleType(f"{Path(path).stem}_{_sha256(code)[:12]}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module
