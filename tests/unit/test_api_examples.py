"""Every package and public name has a docstring with an example that gives what it shows."""

import doctest
import inspect
import pkgutil
from importlib import import_module

import pytest
import reference

DESCRIBED = {
    name: value
    for package in reference.PACKAGES
    for name, value in reference.public(package)
    if reference.described(value)
}
# the same object under two names is run once
ONCE = {value: name for name, value in reversed(DESCRIBED.items())}


def test_every_package_with_public_names_has_a_page():
    packages = {"rr", "rrstudy"}
    for name in ("rr", "rrstudy"):
        inside = pkgutil.iter_modules(import_module(name).__path__)
        packages |= {f"{name}.{info.name}" for info in inside if info.ispkg}
    # `rr bench`, `rr plan` and the command line are described by --help
    assert packages - {"rr.cli", "rrstudy.cli", "rrstudy.perf"} == set(reference.PACKAGES)


@pytest.mark.parametrize("package", reference.PACKAGES)
def test_every_public_name_has_a_docstring(package):
    docs = {
        name: vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
        for name, value in reference.public(package)
        if reference.described(value)
    }
    assert docs and all(docs.values()), [name for name, doc in docs.items() if not doc]


@pytest.mark.parametrize("name", [*reference.PACKAGES, *sorted(ONCE.values())])
def test_example(name, registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    described = DESCRIBED[name] if name in DESCRIBED else import_module(name)
    _, example = reference.split(inspect.getdoc(described))
    assert example, f"{name} has no example: end its docstring with one, below `Example:`"
    test = doctest.DocTestParser().get_doctest(
        example + "\n", {"__name__": "example"}, name, None, 0
    )
    said: list[str] = []
    result = doctest.DocTestRunner().run(test, out=said.append)
    assert result.attempted and not result.failed, "".join(said)
    assert not list(tmp_path.iterdir()), "it leaves files behind"
