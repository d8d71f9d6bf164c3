# make demo: from a checkpoint to exact text. make demo-hybrid: the same with the small hybrid of bench/demo-hybrid.
# make test: the test suite. make bench: figures beside peers.
# Each makes .venv first, once per pyproject.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv

BIN := $(VENV)/bin
# Environments are stamped by what they were made from: a change of dependencies makes them anew in place.
HASH := $(shell echo "$(TORCH)" | cat - pyproject.toml | cksum | cut -d' ' -f1)
BUILDER := $(VENV)/.builder-$(HASH)
DEVELOPER := $(VENV)/.developer-$(HASH)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo demo-hybrid bench test lint wheel install clean
.DELETE_ON_ERROR:

demo: $(BUILDER)
	@$(BIN)/python bench/demo.py

demo-hybrid: $(BUILDER)
	@$(BIN)/python bench/demo.py hybrid

# Peers come first, each in its own environment in .peers; those that cannot be installed are left out.
bench: $(BUILDER)
	-@PYTHON="$(PYTHON)" TORCH="$(TORCH)" bash bench/peers.sh .peers
	@$(BIN)/python bench/cpu.py --json .demo/cpu.json --markdown .demo/cpu.md

test: $(DEVELOPER)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Builds the wheel and installs it alone in a clean environment.
wheel: $(DEVELOPER)
	$(BIN)/python -m pytest -m packaging

lint: $(DEVELOPER)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(DEVELOPER)

clean:
	rm -rf .demo build dist *.egg-info

$(BUILDER):
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "tandem needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "making $(VENV) with $(TORCH) and tandem-llm[compile]" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(TORCH)
	@$(PIP) --editable ".[compile]"
	@rm -f $(VENV)/.builder-* $(VENV)/.developer-*
	@touch $@

$(DEVELOPER): $(BUILDER)
	@echo "adding tandem-llm[dev]" >&2
	@$(PIP) --editable ".[compile,hub,oci,onnx,sign,structured,dev]"
	@touch $@
