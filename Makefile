# Every target sets up its own environment; a second call does not install again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.installed-package
STAMP := $(VENV)/.installed
INTEROP := .venv-interop
LAVA := .venv-lava
PYTHON310 ?= python3.10

TRIAL := build/trial

.PHONY: demo test test-processors test-package test-interop docs pages mutants lint format clean

demo: $(PACKAGE)
	$(BIN)/rheobase demo

test: lint
	$(BIN)/python -m pytest

# The numeric tests again, with the routines that older processors run.
NUMERIC := tests/network/test_batch_invariant.py tests/network/test_nearest_linear.py \
	tests/kernels/conv_integrate_fire/test_cpu.py tests/kernels/test_integrate_fire.py \
	tests/kernels/group_fire/test_llvm.py tests/kernels/group_errors/test_llvm.py \
	tests/kernels/test_count_in_bins.py tests/kernels/test_rounding_errors.py tests/methods/shared/test_histograms.py \
	tests/simulation/test_fusion.py tests/simulation/test_parts.py tests/simulation/test_simulator.py \
	tests/simulation/test_quantised_layer.py tests/simulation/test_exits.py

test-processors: $(STAMP)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest $(NUMERIC)
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(BIN)/python -m pytest $(NUMERIC)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(PACKAGE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e .
	touch $@

$(STAMP): $(PACKAGE)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[test]'
	touch $@

# Write the generated blocks of README.md and docs/ again, from the records.
pages: $(STAMP)
	$(BIN)/python -m tools.pages

# Build the guide into site/. The built pages must load nothing from other servers.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	! grep -rlE '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' site --include='*.html'

$(VENV)/.installed-docs: $(STAMP)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	touch $@

# Build the source distribution, build the wheel from it, and use the wheel without this folder. Its environment is
# fresh: it sees the dependencies in .venv, but not the package there.
test-package: $(STAMP)
	rm -rf $(TRIAL) && mkdir -p $(TRIAL)/elsewhere
	$(BIN)/python -m hatchling build -t sdist -d $(TRIAL)
	tar -xzf $(TRIAL)/*.tar.gz -C $(TRIAL)
	cd $(TRIAL)/rheobase-*/ && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d ..
	$(BIN)/python -m venv --without-pip $(TRIAL)/venv
	$(BIN)/pip --python $(TRIAL)/venv/bin/python install --quiet --no-deps --no-index $(TRIAL)/*.whl
	$(BIN)/python -c 'import torch; print(torch.__path__[0].rpartition("/")[0])' \
		>$$(echo $(TRIAL)/venv/lib/python*/site-packages)/dependencies.pth
	cd $(TRIAL)/elsewhere && ../venv/bin/python -I ../rheobase-*/tools/trial.py

# The other simulators have their own environment, because their requirements contradict each other.
# lava-nc needs Python 3.10; without it, its test is skipped with a message.
test-interop: $(INTEROP)/.installed
	if $(PYTHON310) --version >/dev/null 2>&1; then $(MAKE) --no-print-directory $(LAVA)/.installed; fi
	PYTHONPATH=src $(INTEROP)/bin/python -m pytest -o addopts= -W ignore -q tests/interop

$(INTEROP)/.installed: constraints.txt
	test -x $(INTEROP)/bin/python || $(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/pip install --quiet --no-compile -c constraints.txt torch numpy safetensors rich typer pytest \
		llvmlite hypothesis matplotlib nir nirtorch==2.6 tqdm loguru requests pbr
	$(INTEROP)/bin/pip install --quiet --no-compile --no-deps \
		snntorch==1.0.0 norse==1.1.0 spikingjelly==2.0.0 sinabs==3.1.3
	$(INTEROP)/bin/pip install --quiet --no-compile --no-deps --target $(INTEROP)/nir-1.0.4 nir==1.0.4
	touch $@

$(LAVA)/.installed: Makefile
	test -x $(LAVA)/bin/python || $(PYTHON310) -m venv $(LAVA)
	$(LAVA)/bin/pip install --quiet --no-compile lava-nc==0.10.0
	touch $@

clean:
	rm -rf $(VENV) $(INTEROP) $(LAVA) site build .pytest_cache .mypy_cache .ruff_cache .hypothesis
