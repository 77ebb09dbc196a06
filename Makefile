# Each target does its own set-up, in a private virtual environment; nothing global is touched.
PYTHON ?= python3
VENV := .venv
VERSIONS := --constraint constraints.txt
# what the tests need; models: PyTorch, transformers and flax, for tests of models that use them
EXTRAS := test,models
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# a second leg of the tests: another Python, in an environment of its own, without constraints
PYTHON_NEWEST ?= python3.13
VENV_NEWEST := .venv-$(notdir $(PYTHON_NEWEST))
UNCONSTRAINED := --upgrade --upgrade-strategy eager

.PHONY: demo test quick test-matrix parts thorough coverage lint containers exhaustive engines fuzz hostile killed every-plan pairs mutants gpu-check gpu-kernels gpu-watch gpu-scaling gpu-tensor-core docs reference printed linkcheck pages bench bench-check clean

demo: $(VENV)/.installed
	$(BIN)/roundscope trace --sample --layer layer4 --out demo

# programs against each other, as users compile them; the rest in programs that are optimised less and compile in half the time
BITS := tests/emu tests/test_golden.py tests/attention/engines/test_engines.py
PLAIN := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true
# other versions of jaxlib may not know these, and end the process that names an unknown flag; one
# piece of code for LLVM in place of 32 compiles a fifth faster
EMITTERS := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
WORKERS ?= 2
# bytecode is kept: workers and the commands that tests start would compile every module again
export PYTHONDONTWRITEBYTECODE :=
# worksteal: a worker has tests that stand together, so that those of a file share what took long to
# make, and no worker is idle at the end
# a thread of OpenMP for each worker: PyTorch's threads wait for each other busily, in twice the time
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: $(READY)  ## the checks of lint take one processor, and run beside the tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=none lint parts

test-matrix:  ## the same tests on a newer Python, with the newest of everything that pip finds, without models
	@$(PYTHON_NEWEST) -c '' 2> /dev/null || { echo "No Python runs as '$(PYTHON_NEWEST)': \
	name one, as in make test-matrix PYTHON_NEWEST=/path/to/python3.13." >&2; exit 1; }
	rm -f $(VENV_NEWEST)/.ready
	$(MAKE) PYTHON=$(PYTHON_NEWEST) VENV=$(VENV_NEWEST) VERSIONS='$(UNCONSTRAINED)' EXTRAS=test EMITTERS= parts

parts: $(READY)
	@$(BIN)/python --version
	@$(BIN)/pip list --format=freeze | xargs
	$(PYTEST) -m 'not thorough' $(BITS)
	XLA_FLAGS='$(PLAIN) $(EMITTERS)' $(PYTEST) -m 'not thorough' tests $(addprefix --ignore=,$(BITS))

SINCE ?= HEAD

quick: $(READY)  ## the tests that import what has changed since the last commit, or since SINCE=main; a core set if nothing has
	XLA_FLAGS='$(PLAIN) $(EMITTERS)' $(PYTEST) -q -m 'not thorough' $$($(BIN)/python -m tests.checks.quick $(SINCE))

thorough: $(READY)  ## every test, the long ones too, all as users compile
	$(PYTEST)

CORE := emu events attention operations

coverage: $(READY)  ## the share of lines and branches of emu and attention that their own tests run
	$(BIN)/pip install -qq $(VERSIONS) pytest-cov
	XLA_FLAGS='$(PLAIN) $(EMITTERS)' $(PYTEST) -q -m 'not thorough' $(addprefix --cov=,$(CORE)) --cov-report=term:skip-covered $(addprefix tests/,$(CORE))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.checks.size

AS ?= $(BIN)/python

containers: $(VENV)/.installed  ## no home, unknown users, full and read-only disks; as root: make containers AS=/usr/bin/python3.11, which all users may run
	$(BIN)/python -m tests.checks.container --python $(AS) $(CONTAINERS)

exhaustive: $(READY)  ## every float32 input, every format, both executors; every argument of exp and of tanh.approx
	$(BIN)/python -m tests.checks.exhaustive
	$(BIN)/python -m tests.checks.exhaustive_exp
	$(BIN)/python -m tests.checks.exhaustive_tanh
	$(BIN)/python -m tests.checks.gpu_exp

engines: $(READY)  ## NumPy against XLA, every preset, tile, family, with and without injections
	$(BIN)/python -m tests.checks.engines

HOURS ?= 0.5
SEED ?= 0

fuzz: $(READY)  ## random calls: NumPy against XLA, as users compile and as the tests do, and against the judge
	$(BIN)/python -m tests.checks.fuzz_engines --hours $(HOURS) --seed $(SEED)
	$(BIN)/python -m tests.checks.fuzz_engines --hours $(HOURS) --seed $(SEED) --plain
	$(BIN)/python -m tests.checks.fuzz_programs --seed $(SEED)

hostile: $(READY)  ## words, texts and calls that nobody means: each has to be refused in one line, or answered rightly
	$(BIN)/python -m tests.checks.hostile --show $(AREAS)

TIMES ?= 20

killed: $(READY)  ## kill -9, Ctrl-C and SIGTERM while each command works that writes: what is left, and does the command go on?
	$(BIN)/python -m tests.checks.killed --times $(TIMES) --seed $(SEED)
	$(BIN)/python -m tests.checks.killed --writes
	$(BIN)/python -m tests.checks.killed --signals --times 5 --seed $(SEED)

PLANS ?= 5000

every-plan: $(READY)  ## random plans in binary64 against exact attention, with every argument of a call
	$(BIN)/python -m tests.checks.every_plan --plans $(PLANS) --seed $(SEED)

pairs: $(READY)  ## runs of a small model whose difference is known: does `compare` name the operation, it alone, and its share?
	$(BIN)/python -W ignore -m tests.checks.pairs
	$(BIN)/python -W ignore -m tests.checks.pairs --layers 12
	$(BIN)/python -W ignore -m tests.checks.pairs --library jax
	$(BIN)/python -W ignore -m tests.checks.pairs --library jax --layers 12

COPIES ?= 2

mutants: $(READY)  ## faults planted in the code, one at a time: which test notices each
	$(BIN)/python -m tests.checks.mutants --jobs $(COPIES) --table docs/notes/mutants.md

gpu-check:  ## on a machine with a GPU, jax, Triton and PyTorch: digests of every preset, traces, exp, trainings, tensor cores
	$(PYTHON) -m tests.checks.gpu_check
	$(PYTHON) -m tests.checks.gpu_check --engine pallas
	$(PYTHON) -m tests.checks.gpu_hopper
	$(PYTHON) -m tests.checks.gpu_masks
	$(PYTHON) -m tests.checks.gpu_trace
	$(PYTHON) -m tests.checks.gpu_exp
	$(PYTHON) -m tests.checks.gpu_sixteen
	$(PYTHON) -m tests.checks.gpu_train
	$(PYTHON) -m tests.checks.gpu_tensor_core

gpu-kernels:  ## on a machine with a GPU, PyTorch, transformers and jax: what real kernels return, and every argument of the instructions
	$(PYTHON) -m tests.checks.gpu_kernels --out kernels
	$(PYTHON) -m tests.checks.kernel_twins kernels
	$(PYTHON) -m tests.checks.gpu_instructions
	$(PYTHON) -m tests.checks.gpu_twins --time

gpu-watch:  ## on a machine with a GPU, PyTorch and jax: models on plans, trainings that leak, are warned and cured, the cost of a look
	$(PYTHON) -m tests.checks.gpu_torch
	$(PYTHON) -m tests.checks.watching.cost
	$(PYTHON) -m tests.checks.watching.in_torch --out watch-torch
	$(PYTHON) -m tests.checks.watching.in_jax --out watch-jax

gpu-scaling:  ## on a machine with one or more GPUs: time and memory of fused kernels by tokens, and over the GPUs; a training over the GPUs
	$(PYTHON) -m tests.checks.gpu_scaling
	$(PYTHON) -m tests.checks.gpu_scaling --devices
	$(PYTHON) -m tests.checks.gpu_train --devices

gpu-tensor-core:  ## the last part of gpu-check alone
	$(PYTHON) -m tests.checks.gpu_tensor_core

docs: $(READY)  ## the documentation, its pages executed, in build/docs; a warning is an error
	$(BIN)/pip install -qq $(VERSIONS) --editable '.[$(EXTRAS),docs]'
	$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	@echo "Open $(CURDIR)/build/docs/index.html"

reference: $(READY)  ## writes the tables that are made from the code into the pages of the reference
	cd docs/_ext && $(CURDIR)/$(BIN)/python -m generated

printed: $(if $(PAGES),$(READY),docs)  ## writes what the cells of the documentation printed under them; at a release, or PAGES=howto/sweep after a change of its cells
	$(if $(PAGES),$(BIN)/pip install -qq $(VERSIONS) --editable '.[$(EXTRAS),docs]')
	cd docs/_ext && $(CURDIR)/$(BIN)/python -m printed $(PAGES)

linkcheck: docs  ## the same pages' links to other sites, which needs a network
	$(BIN)/sphinx-build -q -b linkcheck -d build/docs/.doctrees docs build/linkcheck

pages: $(READY)  ## a small page of every kind, and pictures of each, light and dark, wide and narrow, in build/pages; look at them
	$(BIN)/python -m tests.checks.pages build/pages

bench: $(READY)
	$(BIN)/pip install -qq $(VERSIONS) --editable '.[bench]'
	$(BIN)/roundscope bench round
	$(BIN)/roundscope bench dot
	$(BIN)/roundscope bench attention

bench-check: $(READY)  ## our speed as ratios, against the least that is accepted
	$(BIN)/python -m tests.checks.bench_check

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): about 1 GB on the disk, a minute or more by your network"
	$(BIN)/pip install -qq $(VERSIONS) --editable .
	touch $@

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV), with PyTorch and what else the tests need: some minutes"
	$(BIN)/pip install -qq --no-compile $(VERSIONS) --editable '.[$(EXTRAS)]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .venv-* demo build *.egg-info

.PHONY: package
package: $(READY)  ## sdist and wheel in build/package, each installed in a new environment and run there
	$(BIN)/python -m tests.checks.package --python $(PYTHON)
