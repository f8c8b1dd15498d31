# Two commands: `make run` does the main job, `make test` passes the tests. Each sets up all it needs in .venv.
PYTHON ?= python3
# A CPU build of torch is enough. Where the package index serves CUDA builds only, point PIP_EXTRA_INDEX_URL at PyTorch's CPU wheels.
TORCH ?= torch==2.13.0
OLDEST_ACCELERATE ?= accelerate==1.1.1
# More processes than cores only make the machine slower.
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
PYTEST := -m pytest -n $(JOBS) --dist loadgroup
export PYTHONPATH := $(CURDIR)
export HF_HUB_OFFLINE := 1

.PHONY: run test test-oldest lint coverage clean

run: $(VENV)/ready
	$(BIN)/python -m tools run

test: $(VENV)/ready .venv-deepspeed/ready lint
	$(BIN)/python $(PYTEST)

coverage: $(VENV)/ready .venv-deepspeed/ready
	$(BIN)/python $(PYTEST) --cov --cov-report=term-missing:skip-covered --cov-report=html

test-oldest: .venv-oldest/ready
	.venv-oldest/bin/python $(PYTEST) tests/accelerate_ext

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) $(TORCH)
	$(BIN)/python $(PIP) --editable ".[plot,tools,test]"
	touch $@

# Other environments lie on top of .venv: they see its packages, and put their own before them.
.venv-%/above: $(VENV)/ready
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP) --upgrade "setuptools>=68" wheel
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	    > "$$(.venv-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/above.pth"
	touch $@

# DeepSpeed builds against the torch that is there.
.venv-deepspeed/ready: .venv-deepspeed/above
	.venv-deepspeed/bin/python $(PIP) --no-build-isolation deepspeed==0.19.8
	touch $@

.venv-oldest/ready: .venv-oldest/above
	.venv-oldest/bin/python $(PIP) --no-deps $(OLDEST_ACCELERATE)
	touch $@

.PRECIOUS: .venv-%/above

clean:
	rm -rf $(VENV) .venv-* .cache out
