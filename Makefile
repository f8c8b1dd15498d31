# Two commands: `make run` does the main job, `make test` passes the tests. Each sets up all it needs in .venv.
PYTHON ?= python3
# A CPU build of torch is enough. Where the package index serves CUDA builds only, point PIP_EXTRA_INDEX_URL at PyTorch's CPU wheels.
TORCH ?= torch==2.13.0
# The oldest and the newest that are supported, if they are there; else the tests of the bounds run on $(PYTHON).
OLDEST_PYTHON ?= $(shell python3.10 -c 'print("python3.10")' 2>/dev/null || echo $(PYTHON))
NEWEST_PYTHON ?= $(shell python3.13 -c 'print("python3.13")' 2>/dev/null || echo $(PYTHON))
# More processes than cores only make the machine slower.
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
PYTEST := -m pytest -n $(JOBS) --dist loadgroup
EXTRAS := .[plot,tools,trainer,test]
# What does not hang on the releases that the committed patches are made from.
BOUNDS := tests/accelerate_ext tests/tools tests/test_layout.py $(addprefix --ignore=tests/tools/,trainer test_run.py overflow/test_trainer_table.py)
export PYTHONPATH := $(CURDIR)
export HF_HUB_OFFLINE := 1

.PHONY: run test test-oldest test-newest lint coverage figures package clean

run: $(VENV)/ready
	$(BIN)/python -m tools run

test: $(VENV)/ready .venv-deepspeed/ready lint
	$(BIN)/python $(PYTEST)

# Of each package by itself: what is left (setup.cfg says what must not be), and the branches alone.
coverage: $(VENV)/ready .venv-deepspeed/ready
	$(BIN)/python $(PYTEST) --cov --cov-report=html
	$(BIN)/coverage report --include="accelerate_ext/*"
	$(BIN)/coverage report --include="tools/*"
	$(BIN)/coverage json --quiet -o - | $(BIN)/python .ci/branches.py 95

test-oldest: .venv-oldest/ready
	.venv-oldest/bin/python $(PYTEST) $(BOUNDS)

test-newest: .venv-newest/ready
	.venv-newest/bin/python $(PYTEST) $(BOUNDS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

figures: $(VENV)/ready
	$(BIN)/python docs/figures.py docs/images

package: .venv-package/ready
	rm -rf dist
	.venv-package/bin/python -m build --quiet
	.venv-package/bin/twine check --strict dist/*

$(VENV)/ready: setup.cfg pyproject.toml constraints/pinned.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("The pinned Transformers needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + ": name another one, as in make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) $(TORCH)
	$(BIN)/python $(PIP) --constraint constraints/pinned.txt --editable "$(EXTRAS)"
	touch $@

# DeepSpeed lies on top of .venv: it sees its packages, with what they start (coverage), puts its own before them, and builds
# against the torch that is there.
.venv-deepspeed/ready: $(VENV)/ready
	$(PYTHON) -m venv .venv-deepspeed
	.venv-deepspeed/bin/python $(PIP) --upgrade "setuptools>=77" wheel
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > "$$(.venv-deepspeed/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/above.pth"
	.venv-deepspeed/bin/python $(PIP) --no-build-isolation deepspeed==0.19.8
	touch $@

.venv-oldest/ready: setup.cfg pyproject.toml constraints/oldest.txt
	$(OLDEST_PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python $(PIP) --constraint constraints/oldest.txt --editable "$(EXTRAS)"
	touch $@

.venv-newest/ready: setup.cfg pyproject.toml
	$(NEWEST_PYTHON) -m venv .venv-newest
	.venv-newest/bin/python $(PIP) --upgrade --upgrade-strategy eager --editable "$(EXTRAS)"
	touch $@

.venv-package/ready:
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python $(PIP) build twine
	touch $@

clean:
	rm -rf $(VENV) .venv-* .cache build dist *.egg-info out
