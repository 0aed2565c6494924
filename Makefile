# make demo | test | test-slow | lint | docs | bench | clean. Everything happens in .venv; nothing else is touched.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint docs bench clean setup
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
	@$(BIN)/python experiments/dlrm_criteo.py --method=baseline,hybrid --workdir=runs/demo

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

clean:
	rm -rf $(VENV) build *.egg-info dct_jax/native/*.so .jax_cache
