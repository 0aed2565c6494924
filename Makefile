# make demo | demo-results | test | test-slow | lint | docs | bench | wheel | clean. Everything happens in .venv and runs/ (wheels
# go to dist/, the site to build/); nothing else is touched, but for what demo-results is there to renew.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo demo-results wheel test test-slow lint docs bench clean setup
setup: $(READY)

$(READY): setup.cfg setup.py pyproject.toml $(wildcard dct_jax/native/src/* dct_jax/native/src/*/*)
	@echo "== Setting up: a virtual environment in $(VENV), JAX, and the native kernels (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -U pip
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -c "import dct_jax.kernels as k; print('== Native kernels:', 'in use' if k.native_in_use() else 'not built, pure JAX instead')"
	@touch $(READY)

demo: $(READY)
	@echo "== Demo: DLRM on synthetic clicks, 4 workers, two runs of a minute or less: dense, then DCT for gradients and activations"
	@rm -rf runs/demo
	@DCT_JAX_COMMAND='make demo' $(BIN)/python experiments/dlrm_criteo.py --method=baseline,hybrid --workdir=runs/demo \
	  --results=runs/demo/results.json

# Renews what README shows of the demo: its file of results and its picture, and the pages that have numbers of it.
demo-results: demo
	@cp runs/demo/results.json results/demo.json
	@cp runs/demo/loss.png docs/pictures/demo.png
	@$(BIN)/python docs/render.py

test: $(READY)
	@echo "== Tests (make test-slow runs the long ones)"
	@$(BIN)/python -m pytest -m "not slow" -n 2 --durations=5

test-slow: $(READY)
	@echo "== Long tests"
	@$(BIN)/python -m pytest -m slow -n 2 --durations=5

lint: $(READY)
	@echo "== ruff and mypy"
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m mypy

docs: $(READY)
	@echo "== The site: build/docs/index.html; warnings are errors"
	@$(BIN)/python docs/render.py --check
	@$(BIN)/python -m sphinx -nWq --keep-going -c docs -d build/doctrees . build/docs

bench: $(READY)
	@echo "== Benchmarks (see benchmarks/README.md)"
	@$(BIN)/python benchmarks/kernels.py
	@$(BIN)/python benchmarks/step.py

wheel: $(READY)
	@.ci/wheel $(BIN)/python

clean:
	rm -rf $(VENV) build dist *.egg-info dct_jax/native/*.so .jax_cache
