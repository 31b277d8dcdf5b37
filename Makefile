# On a fresh machine every target sets up what it needs. Versions are in constraints.txt, for what builds our package too:
# pip's option -c leaves that out, the first variable does not, and from pip 25.3 on there is the second.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINNED = PIP_CONSTRAINT=$(1) PIP_BUILD_CONSTRAINT=$(1)
PINS := $(call PINNED,constraints.txt)
INSTALLED := $(VENV)/.installed
VENV_TIMM := .venv-timm
INSTALLED_TIMM := $(VENV_TIMM)/.installed
VENV_MONAI := .venv-monai
INSTALLED_MONAI := $(VENV_MONAI)/.installed
VENV_TOOLS := .venv-tools
INSTALLED_TOOLS := $(VENV_TOOLS)/.installed
VENV_PLAY := .venv-play
INSTALLED_PLAY := $(VENV_PLAY)/.installed
KERNEL := hatch_build.py $(wildcard src/quarterturn/kernel/src/*) $(addprefix src/quarterturn/kernel/,border.py compiler.py)
CLANG_FORMAT := $(shell command -v clang-format)

.PHONY: help demo test test-timm test-monai test-tools test-play test-slow notebooks fuzz sanitize check format bench constraints clean
help:
	@echo "make demo       three networks on built-in images, a table and a report, in minutes"
	@echo "make test       the whole test suite (makes .venv first where there is none)"
	@echo "make test-timm  networks of timm, torchvision and segmentation_models_pytorch (makes .venv-timm)"
	@echo "make test-monai networks for volumes: MONAI, nnU-Net and torchvision (makes .venv-monai)"
	@echo "make test-tools exported packages in bioimageio.core and WSInfer (makes .venv-tools)"
	@echo "make test-play  the page of quarterturn play, and the site, in a browser (makes .venv-play)"
	@echo "make notebooks  execute all notebooks again, and write them with their outputs"
	@echo "make test-slow  longer checks, run before a change is called done"
	@echo "make fuzz       damaged files, guided by the lines they reach, for ten minutes (installs atheris)"
	@echo "make sanitize   the kernel's tests with address and undefined-behaviour sanitizers (needs g++)"
	@echo "make check      format, lint and types"
	@echo "make format     put the code into shape"
	@echo "make docs       the site, into site/ (makes .venv-docs); a broken link or reference is an error"
	@echo "make docs-serve the site at http://localhost:8000, while pages are edited"
	@echo "make pictures   the drawn pictures of the site"
	@echo "make dist       wheel and sdist, into dist/"
	@echo "make test-dist  the wheel in a clean environment, with torch and numpy alone"
	@echo "make bench      speed of the operations, as ratios, into bench/results/"
	@echo "make constraints  pin all that the packages in constraints.txt bring along, as installed here"
	@echo "make clean      remove .venv and the other environments, and caches"

$(INSTALLED): pyproject.toml constraints.txt $(KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PINS) $(BIN)/python -m pip install -q -e ".[dev,lab]"
	@$(BIN)/quarterturn doctor | grep kernel # pip hides what the build says, where there is no compiler
	touch $@

demo: $(INSTALLED)
	$(BIN)/quarterturn demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto

# Not in .venv: timm brings torchvision, which breaks packages that merely find it beside a torch without CUDA.
$(INSTALLED_TIMM): pyproject.toml constraints.txt tests/timm/requirements.txt $(KERNEL)
	test -x $(VENV_TIMM)/bin/python || $(PYTHON) -m venv $(VENV_TIMM)
	$(PINS) $(VENV_TIMM)/bin/python -m pip install -q -r tests/timm/requirements.txt -e ".[lab,onnx]"
	touch $@

test-timm: $(INSTALLED_TIMM)
	$(VENV_TIMM)/bin/python -m pytest -n auto tests/timm

# Networks for volumes, in an environment of their own for the same reason.
$(INSTALLED_MONAI): pyproject.toml constraints.txt tests/monai/requirements.txt $(KERNEL)
	test -x $(VENV_MONAI)/bin/python || $(PYTHON) -m venv $(VENV_MONAI)
	$(PINS) $(VENV_MONAI)/bin/python -m pip install -q -r tests/monai/requirements.txt -e ".[lab,onnx]"
	touch $@

test-monai: $(INSTALLED_MONAI)
	$(VENV_MONAI)/bin/python -m pytest -n auto tests/monai

# The programs that exports are for, without ours: they need older versions of what both use.
$(INSTALLED_TOOLS): tests/tools/requirements.txt
	test -x $(VENV_TOOLS)/bin/python || $(PYTHON) -m venv $(VENV_TOOLS)
	$(VENV_TOOLS)/bin/python -m pip install -q -r tests/tools/requirements.txt
	touch $@

test-tools: $(INSTALLED) $(INSTALLED_TOOLS)
	$(BIN)/python -m pytest -m slow tests/tools

# gradio takes older versions of two packages than the others: tests/play/requirements.txt has them.
$(INSTALLED_PLAY): pyproject.toml constraints.txt tests/play/requirements.txt $(KERNEL)
	test -x $(VENV_PLAY)/bin/python || $(PYTHON) -m venv $(VENV_PLAY)
	grep -vE '^(pillow|tomlkit)==' constraints.txt > $(VENV_PLAY)/constraints.txt
	$(call PINNED,$(VENV_PLAY)/constraints.txt) $(VENV_PLAY)/bin/python -m pip install -q -r tests/play/requirements.txt -e ".[play,onnx]"
	touch $@

test-play: $(INSTALLED_PLAY) docs
	$(VENV_PLAY)/bin/python -m pytest -m slow tests/play

notebooks: $(INSTALLED) $(INSTALLED_TIMM)
	$(BIN)/python notebooks/execute.py
	$(VENV_TIMM)/bin/python notebooks/execute.py convert_timm

test-slow: $(INSTALLED) $(INSTALLED_TIMM) $(INSTALLED_MONAI) $(INSTALLED_TOOLS) $(INSTALLED_PLAY) docs
	$(BIN)/python -m pytest -m slow
	$(VENV_PLAY)/bin/python -m pytest -m slow tests/play
	$(VENV_TIMM)/bin/python -m pytest -m slow -n auto tests/timm
	$(VENV_MONAI)/bin/python -m pytest -m "slow or not slow" -n auto tests/monai

SECONDS := 600
fuzz: $(INSTALLED)
	$(PINS) $(BIN)/python -m pip install -q -e ".[fuzz]"
	PYTHONPATH=tests:tests/lab $(BIN)/python -W ignore tests/lab/fuzz_atheris.py -max_total_time=$(SECONDS)

# Kernels compiled for this alone, in a folder that goes away. Sanitizers must be in the process before Python is.
SANITIZERS := -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
sanitize: $(INSTALLED)
	folder=$$(mktemp -d) && trap "rm -rf $$folder" EXIT && \
	code=$$($(BIN)/python -c "import quarterturn as qt; print(qt.kernels().code)") && \
	CXX="$(CXX)" $(BIN)/python -I src/quarterturn/kernel/compiler.py $$folder portable,$$code $(SANITIZERS) && \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	QUARTERTURN_KERNEL=$$folder $(BIN)/python -m pytest --capture=sys -p no:cacheprovider tests/test_kernel*.py

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(if $(CLANG_FORMAT),$(CLANG_FORMAT) -i src/quarterturn/kernel/src/*)

VENV_DOCS := .venv-docs
INSTALLED_DOCS := $(VENV_DOCS)/.installed
.PHONY: docs docs-serve pictures dist test-dist clean-docs
# Not in .venv: what makes the site reads the code without running it, and needs neither torch nor the lab.
$(INSTALLED_DOCS): pyproject.toml constraints.txt
	test -x $(VENV_DOCS)/bin/python || $(PYTHON) -m venv $(VENV_DOCS)
	$(PINS) $(VENV_DOCS)/bin/python -m pip install -q $(shell $(PYTHON) .ci/extra docs)
	touch $@

docs: $(INSTALLED_DOCS)
	$(VENV_DOCS)/bin/python .ci/site

docs-serve: $(INSTALLED_DOCS)
	$(VENV_DOCS)/bin/zensical serve

pictures: $(INSTALLED)
	cd docs/pictures && for script in draw_*.py; do ../../$(BIN)/python $$script; done

dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m hatchling build -t sdist -t wheel

test-dist: dist
	$(PYTHON) .ci/test-dist dist

clean: clean-docs
clean-docs:
	rm -rf $(VENV_DOCS) site dist .cache

bench: $(INSTALLED)
	$(BIN)/python bench/ops.py
	$(BIN)/python bench/modes.py --batch 32
	$(BIN)/python bench/norms.py
	$(BIN)/python bench/training.py $(if $(DATA),--data $(DATA))
	$(BIN)/python bench/export.py
	$(BIN)/python bench/conv.py
	$(BIN)/python bench/vgg.py
	$(BIN)/python bench/dense.py
	$(BIN)/python bench/bf16.py
	$(BIN)/python bench/rule.py
	if command -v perf; then $(BIN)/python bench/shares.py; fi
	$(BIN)/python bench/costs.py
	$(BIN)/python bench/tables.py

constraints: $(INSTALLED) $(INSTALLED_TIMM) $(INSTALLED_MONAI)
	$(BIN)/python .ci/constraints $(VENV) $(VENV_TIMM) $(VENV_MONAI)

clean:
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
