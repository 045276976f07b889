# Two commands matter: `make book` and `make test`.  `make` alone lists the rest.
#
#   PYTHON      which Python makes the virtual environment (3.11 to 3.13)
#   VENV        where it is made (.venv); a folder that make did not make is left alone
#   PY          an environment of your own, used as it is: nothing is installed
#   PIP_TORCH   options for pip when it installs torch, to choose another build than pip's default
#   CONSTRAINTS which versions pip installs (constraints.txt); empty: the newest
#   PORT        the port of `make serve`

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PIP_TORCH ?=
PORT ?= 8000
CONSTRAINTS ?= constraints.txt
VENV := .venv
PY := $(VENV)/bin/python
MADE := $(VENV)/.made-by-make
READY := $(VENV)/.ready
# with PY=... nothing is installed
INSTALLED := $(if $(filter file,$(origin PY)),$(READY))
SITE := _build/site

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Several processes at a time, so one thread each; a cache of texts of their own.
THREADS ?= 1
PYTEST = env OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) TORCHINDUCTOR_COMPILE_THREADS=1 \
  OMP_WAIT_POLICY=PASSIVE PYDEVD_DISABLE_FILE_VALIDATION=1 RR_EDITION=1 RR_CACHE=$(CURDIR)/_build/test-cache \
  $(KERNELS) $(PY) -m pytest -q -m "not slow" -n 3 --dist loadgroup --no-loadscope-reorder \
  -p tests.notebooks.glued @tests/notebooks/nbval.args

.PHONY: help book store test faults portable lint home colab versions new-rule serve site-zip publish pdf \
  release newest links colab-versions clean distclean outputs avx512 aten avx2 mkl plain

help:  ## list the targets
	@printf 'make book    install once, execute every notebook (smoke tier), render the book\n'
	@printf 'make test    everything that guards the book and the package\n'
	@printf 'make store   refresh the outputs stored in notebooks/\n'
	@printf 'make faults  the full suite of kills and broken files, and every rule resumed (long)\n'
	@printf 'make portable  unit tests and outputs as other machines would run them (long); or one:\n  make avx512, aten, avx2, mkl, plain\n'
	@printf 'make lint    style of code, notebooks and prose; types\n'
	@printf 'make home    set the project'"'"'s address to that of origin, or URL=...\n'
	@printf 'make versions  gradients, paths, resume and three chapters with each version of torch (long)\n'
	@printf 'make colab   all unit tests, labs and chapters with the versions that Colab has (6 GB, long)\n'
	@printf 'make new-rule NAME=damped   begin a residual rule of your own\n'
	@printf 'make serve   show the built book on http://localhost:$(PORT)\n'
	@printf 'make site-zip  the built book as one file that opens without a network\n'
	@printf 'make pdf     the built book as one PDF, by Chromium\n'
	@printf 'make release   site, PDF, wheel, sdist, records and checksums in _build/release/\n'
	@printf 'make newest  `make book test` with the newest versions of everything (network)\n'
	@printf 'make links   follow every link that leads out of the book (network)\n'
	@printf 'make colab-versions   has Colab moved on from the versions tried here? (network)\n'
	@printf 'make publish   push the built book to gh-pages of origin\n'
	@printf 'make clean   remove _build/ (and `make distclean`: the virtual environment as well)\n'
	@printf '\n  PIP_TORCH=...  options for pip when it installs torch;  PYTHON=...  which Python to use\n'
	@printf '  PY=...         an environment of your own, as it is: nothing is installed\n'

$(READY): constraints.txt pyproject.toml book/pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok \
	  else f"make: Python {sys.version.split()[0]} found; 3.11, 3.12 or 3.13 is needed (PYTHON=...)")'
	@test ! -e $(VENV) || test -e $(MADE) || { echo "make: $(VENV) exists and make did not make it," \
	  "so nothing is installed there. Choose another VENV=..., or use it as it is: PY=$(VENV)/bin/python"; \
	  exit 1; }
	@echo "install: a new virtual environment in $(VENV)/ from $(or $(CONSTRAINTS),the package index's newest) (once, a few minutes)"
	@rm -rf $(VENV)
	@mkdir -p $(VENV) && touch $(MADE)
	@$(PYTHON) -m venv $(VENV) || { echo "make: no venv module (on Debian: apt install python3-venv)"; exit 1; }
	@echo "install: torch first, so that the build chosen here is the one that stays"
	@$(VENV)/bin/python -m pip install -q $(PIP_TORCH) $(CONSTRAINTS:%=-c %) torch setuptools
	@echo "install: the package and what the book and its tests need"
	@$(VENV)/bin/python -m pip install -q $(CONSTRAINTS:%=-c %) --no-build-isolation -e '.[book,test,hub]' -e book
	@touch $@
	@echo "install: done"

book: $(INSTALLED)  ## execute what changed, then render
	@$(PY) book/tools/execute.py
	@$(PY) book/tools/render.py --notebooks _build/notebooks --site $(SITE)

store: $(INSTALLED)  ## the stored outputs that the page tests and nbval compare with
	@$(PY) book/tools/bootstrap.py
	@$(PY) book/tools/execute.py
	@$(PY) book/tools/store.py

test: lint  ## notebooks against their stored outputs, units, the page in a browser, kills
	@rm -rf _build/test-cache
	@$(PYTEST) notebooks tests/unit tests/book tests/faults tests/notebooks
	@echo "make test: passed"

faults: $(INSTALLED)
	@$(PY) -m pytest tests/faults
	@$(PY) -m pytest tests/unit -m slow

# Other machines: a Python, threads, and the kernels that an older CPU would choose.
avx512 := PYTHON=python3.11 THREADS=1 KERNELS='ONEDNN_MAX_CPU_ISA=AVX512_CORE'
aten := PYTHON=python3.11 THREADS=3 KERNELS='ATEN_CPU_CAPABILITY=default'
avx2 := PYTHON=python3.12 THREADS=1 KERNELS='ONEDNN_MAX_CPU_ISA=AVX2'
mkl := PYTHON=python3.12 THREADS=3 KERNELS='MKL_CBWR=COMPATIBLE'
plain := PYTHON=python3.13 THREADS=1 KERNELS='ATEN_CPU_CAPABILITY=default \
  ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE'
MACHINES := avx512 aten avx2 mkl plain

portable: $(MACHINES)
$(MACHINES):  ## one of them, with compiled code of its own: another's may not run here
	@TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/_build/$@-kernels $(MAKE) VENV=_build/$@ $($@) outputs

outputs: $(INSTALLED)
	@$(PYTEST) notebooks tests/unit

lint: $(INSTALLED)
	@$(PY) book/tools/lint.py
	@$(PY) -m basedpyright --pythonpath "$$(command -v $(PY))"

new-rule: $(INSTALLED)
	@$(PY) book/tools/new_rule.py -- "$${NAME-}"

home: $(INSTALLED)  ## a fork: once, then commit; the environment stays, its metadata follow
	@$(PY) book/tools/home.py $${URL:+"$$URL"}
	@$(if $(INSTALLED),$(PY) -m pip install -q --no-deps --no-build-isolation -e . && touch $(READY))

versions: $(INSTALLED)  ## installs each version beside .venv, one at a time; 7 GB at most
	@$(PY) book/tools/versions.py $(VERSIONS)

colab: $(INSTALLED)
	@$(PY) book/tools/colab.py

serve: $(INSTALLED)
	@test -f $(SITE)/index.html || { echo 'make: nothing built yet; run `make book` first'; exit 1; }
	@echo "the book is at http://localhost:$(PORT)/ (Ctrl-C ends it)"
	@$(PY) -m http.server --directory $(SITE) --bind 127.0.0.1 $(PORT)

site-zip: $(INSTALLED)
	@$(PY) book/tools/site_zip.py

publish: $(INSTALLED)  ## the branch is a single commit: the sources have a history of their own
	@test -f $(SITE)/index.html || { echo 'make: nothing built yet; run `make book` first'; exit 1; }
	@GIT_COMMITTER_NAME="$$(git log -1 --format=%an)" GIT_COMMITTER_EMAIL="$$(git log -1 --format=%ae)" \
	  $(PY) -m ghp_import --no-history --no-jekyll --push -m "The site of $$(git rev-parse HEAD)" $(SITE)

pdf: $(INSTALLED)
	@$(PY) book/tools/pdf.py

release: book  ## what a tag publishes
	@$(PY) book/tools/release.py

newest:  ## in an environment of its own, with what the index has today
	@$(MAKE) VENV=_build/newest CONSTRAINTS= book test

links: $(INSTALLED)
	@$(PY) book/tools/render.py --links

colab-versions: $(INSTALLED)
	@$(PY) book/tools/colab.py versions

clean:
	rm -rf _build

distclean: clean
	@test ! -e $(VENV) || test -e $(MADE) || { echo "make: make did not make $(VENV); it stays"; exit 1; }
	rm -rf $(VENV) *.egg-info
