# Two commands: `make run` does the main job, `make test` passes the tests. Each sets up all it needs in .venv.
PYTHON ?= python3
# A CPU build of torch is enough. Where the index serves a CUDA build only, point PIP_EXTRA_INDEX_URL at the CPU wheels.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
export PYTHONPATH := $(CURDIR)

.PHONY: run test lint clean

run: $(VENV)/ready
	$(BIN)/python -m tools run

test: $(VENV)/ready lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable ".[plot,tools,test]"
	touch $@

clean:
	rm -rf $(VENV) .venv-* .cache out
