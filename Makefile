# The lanes. On a fresh Linux machine with python3 (venv, headers) and gcc, `make demo` is all.
#
#   make demo            train a small model with torch's pieces and with ours, side by side
#   make quick           the heart of the tests in a minute or two: one case of each Python test,
#                        but for those that are marked slow (2 s) or start programs (tests/isolated,
#                        tests/packaging), and the C tests that take less than a second
#   make test            Python tests, then the C tests (ctest); without tests of frameworks
#                        (test-frameworks) and those that are marked slowest: make test-all has both
#   make test-torchvision  the tests that compare with torchvision, which `make torchvision` fetches
#                        into a folder of its own: `make test` goes without
#   make test-adapters   the tests with the real TensorBoard, wandb, MLflow and Ray Train (ADAPTERS), which
#                        go into a folder of their own, too; .ci/run goes without, they take minutes
#   make matrix          the heart of the Python tests on other releases of torch, other Pythons and
#                        other start methods, each in an environment of its own in MATRIX_DIR;
#                        docs/results/versions.md. VERSIONS='2.10 py3.13 spawn' chooses, AGAIN=1 repeats
#   make overlay         the loops' tests with the Python parts of the newest releases of torch
#                        (OVERLAYS) laid over the installed one
#   make asan tsan       the C tests under AddressSanitizer + UBSan, and under ThreadSanitizer
#                        (they take g++ too: CUDA's kernels are compiled as C++)
#   make aarch64         the C tests of floors 0 to 2, compiled for 64-bit Arm and run by qemu-user
#                        (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
#   make lint            clang-format, ruff, mypy, and the house rules (-k: go on after the first)
#   make docs            the site of docs/ and the docstrings, in build/site; needs no torch
#   make bench           the benchmarks
#   make gpu             what needs a CUDA device, in stages (tests/gpu/run.py) and at most nine
#                        minutes, but for what has passed at this commit (AGAIN=1: all); STAGE=passes
#                        runs one alone
#   make wheel           a manylinux wheel for each of PYTHONS (those of python3.10 to python3.14 that
#                        are here) in dist/; make test-wheels installs and tries them
#   make sdist clean distclean
#
# TORCH=torch==2.12.0 chooses another torch, PYTHON=python3.12 the Python that makes .venv (after
# `make distclean`), PYTEST_ARGS='-k ring -x' what pytest runs, JOBS=1 how many tests run and files
# compile at a time, FASTLOOP_WERROR=1 makes warnings errors, FASTLOOP_CUDA=0 or 1 a build without or
# with CUDA (else: with, where there is nvcc).
PYTHON ?= python3
TORCH ?= torch==2.13.0
CC := gcc
CXX := g++
PYTEST_ARGS ?=
JOBS ?= 2
C_TEST_TIMEOUT ?= 300

VENV := $(CURDIR)/.venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -q
STAMPS := $(VENV)/stamps
# Tests start here: from the root, `python -c 'import fastloop'` finds the sources, which have no
# compiled core, instead of the installed package.
NOWHERE := build/nowhere
PYTEST = mkdir -p $(NOWHERE) && cd $(NOWHERE) && \
	$(VENV)/bin/pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR)

# A file's tests stay on one worker, which builds once what they share. In the order of the files,
# because the longest are in front. Tests wait for a third of their time, so one more than JOBS run.
AT_A_TIME = $(if $(filter-out 1,$(JOBS)),-n $$(($(JOBS) + 1)) --dist loadfile --no-loadscope-reorder)

.PHONY: demo quick matrix overlay test test-all test-frameworks pytest torchvision test-torchvision test-adapters ctest asan tsan aarch64 lint bench gpu docs sdist wheel test-wheels clean distclean install FORCE
.DELETE_ON_ERROR:

demo: $(STAMPS)/install
	@$(VENV)/bin/python examples/digits.py

# Each part shows how far it is. How long all takes is known from the last time.
TIMES := build/times
test-all: CHOICE := PYTEST_CHOICE= test-frameworks
test test-all:
	@mkdir -p $(TIMES) && date +%s > $(TIMES)/$@.begin
	@echo "make $@: the Python tests, then the C tests; $$(cat $(TIMES)/$@ 2>/dev/null || \
		echo 'how long they take is known after the first time')"
	@$(MAKE) --no-print-directory pytest $(CHOICE)
	@echo 'make $@: the C tests'
	@$(MAKE) --no-print-directory ctest
	@minutes=$$((($$(date +%s) - $$(cat $(TIMES)/$@.begin) + 30) / 60)); \
		echo "make $@: passed in about $$minutes minutes"; \
		$(if $(PYTEST_ARGS),,echo "about $$minutes minutes the last time" > $(TIMES)/$@)

# Frameworks have processes of their own: a fork copies the page tables of all that was imported.
PYTEST_CHOICE := -m 'not slowest'
PYTEST_FOLDERS := tests
pytest: install
	$(PYTEST) $(addprefix $(CURDIR)/,$(PYTEST_FOLDERS)) $(addprefix --ignore=$(CURDIR)/tests/,gpu frameworks) \
		$(PYTEST_CHOICE) $(AT_A_TIME) $(PYTEST_ARGS)

test-frameworks: install
	$(PYTEST) $(CURDIR)/tests/frameworks $(AT_A_TIME) $(PYTEST_ARGS)

# Other packages behave otherwise where torchvision is, so it is not among what they see.
TORCHVISION := $(VENV)/torchvision

torchvision: $(STAMPS)/torchvision

test-torchvision: install torchvision
	export PYTHONPATH=$(TORCHVISION); $(PYTEST) $(shell grep -rl torchvision $(CURDIR)/tests/data --include='test_*.py') \
		$(addprefix $(CURDIR)/tests/,frameworks/test_torchvision_folders.py loader/test_served_fetches.py) \
		$(wildcard $(CURDIR)/tests/patching/test_patch_transforms*.py) $(AT_A_TIME) $(PYTEST_ARGS)

# The folder has all that they depend on, in the newest releases that go together.
ADAPTERS ?= tensorboard==2.21.0 wandb==0.31.0 mlflow==3.17.2 ray[train]==2.60.0

test-adapters: install $(STAMPS)/adapters
	export PYTHONPATH=$(VENV)/adapters; \
		$(PYTEST) $(addprefix $(CURDIR)/tests/frameworks/test_,trackers.py ray_train.py) -rs $(PYTEST_ARGS)

quick: install
	$(PYTEST) $(addprefix $(CURDIR)/tests/,loader data workers device step house) --quick \
		$(AT_A_TIME) $(PYTEST_ARGS)
	@$(RUN_LANE) LANE=plain LEFT_OUT='$(SLOW_C_TESTS)'

# ---- other releases of torch, other Pythons (docs/results/versions.md)

VERSIONS ?=
AGAIN ?=
matrix: $(STAMPS)/requirements
	$(VENV)/bin/python tests/versions/matrix.py --jobs $(JOBS) --pythons '$(PYTHONS)' $(if $(AGAIN),--again) $(VERSIONS)

OVERLAYS ?= 2.15.0 2.14.1
OVERLAY_TESTS := $(addprefix $(CURDIR)/tests/,$(addprefix loader/test_,epochs.py loader_iteration.py loader_parity.py \
	loader_signature.py resume.py streams.py thread_parity.py) $(addprefix workers/test_,process_parity.py restart.py) \
	$(addprefix patching/test_patch_,clip.py loaders.py scaler.py) \
	$(addprefix step/test_,clip.py scaler.py scaler_parity.py stepper.py) versions/test_torch_mutants.py)

overlay: install
	@for release in $(OVERLAYS); do \
		place=$$($(VENV)/bin/python tests/versions/overlay.py $$release build/overlay); \
		case $$? in 0) ;; 3) echo "torch $$release is not to be had: nothing is tried with it"; continue;; *) exit 1;; esac; \
		(export PYTHONPATH="$$place"; $(PYTEST) $(OVERLAY_TESTS) --quick -q $(AT_A_TIME) $(PYTEST_ARGS)) || exit 1; \
	done

bench: install $(STAMPS)/bench-requirements
	$(VENV)/bin/python benchmarks/bench_array.py
	$(VENV)/bin/python benchmarks/bench_preprocess.py
	$(VENV)/bin/python benchmarks/bench_sequences.py
	$(VENV)/bin/python benchmarks/bench_python_dataset.py
	$(VENV)/bin/python benchmarks/bench_own_datasets.py
	$(VENV)/bin/python benchmarks/bench_workers.py
	$(VENV)/bin/python benchmarks/bench_tune.py
	$(VENV)/bin/python benchmarks/bench_fresh.py
	$(VENV)/bin/python benchmarks/bench_step.py
	$(VENV)/bin/python benchmarks/bench_large.py
	$(VENV)/bin/python benchmarks/bench_patched.py

# ---- on a machine with a GPU; GPU_PYTHON=python3 is for one that has torch, NumPy and setuptools,
# GPU_WHEELS=FOLDER for one that has no pytest or psutil: all wheels in that folder are installed

GPU_PYTHON ?= $(VENV)/bin/python
STAGE ?=

gpu: $(if $(filter $(VENV)/%,$(GPU_PYTHON)),$(STAMPS)/requirements)
	GPU_PYTHON='$(GPU_PYTHON)' AGAIN='$(AGAIN)' $(GPU_PYTHON) tests/gpu/run.py $(STAGE)

# ---- set-up: each step leaves a stamp and runs again when what it depends on is newer

$(STAMPS)/venv:
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

# Holds the value of TORCH, and is newer than the requirements only when that has changed.
$(STAMPS)/torch: FORCE | $(STAMPS)/venv
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

SPACE := $(subst ,, )
# A part of requirements-dev.txt: the demo needs less than the tests do.
DEMO_NEEDS := numpy scikit-learn setuptools tqdm wheel
$(STAMPS)/demo-requirements: requirements-dev.txt $(STAMPS)/torch
	@echo 'installing $(TORCH), $(DEMO_NEEDS) into .venv'
	@grep -E '^($(subst $(SPACE),|,$(DEMO_NEEDS)))=' requirements-dev.txt > $@.txt
	$(PIP) install -r $@.txt $(TORCH)
	touch $@

$(STAMPS)/requirements: requirements-dev.txt $(STAMPS)/demo-requirements
	@echo 'installing requirements-dev.txt into .venv: this takes a few minutes the first time'
	$(PIP) install -r requirements-dev.txt $(TORCH)
	touch $@

# Without what they depend on, because torchvision's wheel asks for torch with CUDA.
$(STAMPS)/bench-requirements: requirements-bench.txt $(STAMPS)/requirements
	$(PIP) install --no-deps -r requirements-bench.txt
	touch $@

$(STAMPS)/torchvision: requirements-bench.txt $(STAMPS)/requirements
	$(PIP) install --no-deps --upgrade --target $(TORCHVISION) $$(grep -E '^(torchvision)=' requirements-bench.txt)
	touch $@

$(STAMPS)/adapters: $(STAMPS)/requirements
	@echo 'installing $(ADAPTERS): 1.2 GB'
	rm -rf $(VENV)/adapters
	$(PIP) install --no-compile --target $(VENV)/adapters $(ADAPTERS)
	touch $@

INSTALL_NEEDS := $(STAMPS)/$(if $(filter-out demo,$(or $(MAKECMDGOALS),demo)),,demo-)requirements

# Directories are in the list because a file that went away leaves only their date.
SOURCES := setup.py setup_cuda.py pyproject.toml MANIFEST.in \
	$(shell find csrc fastloop -name __pycache__ -prune -o -print)

# build/lib is removed because setuptools would pack modules that no longer exist.
# What only the tests need must be there, and changes nothing that is compiled.
$(STAMPS)/install: $(SOURCES) $(STAMPS)/demo-requirements | $(INSTALL_NEEDS)
	@echo 'compiling fastloop: about a minute'
	rm -rf build/lib.* build/bdist.*
	$(PIP) install --no-deps --no-build-isolation --force-reinstall .
	touch $@

# Both are named: make does not make what is missing for a newer stamp (.SECONDARY).
install: $(INSTALL_NEEDS) $(STAMPS)/install

# ---- C tests: every tests/c/test_*.c is a program over floors 0 to 2, without Python

LANE ?= plain
SANITIZE_plain :=
SANITIZE_asan := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SANITIZE_tsan := -fsanitize=thread
# ThreadSanitizer of gcc 12 cannot place its shadow where the kernel randomises much.
UNDER_tsan := $(shell setarch -R true 2>/dev/null && echo setarch -R)
CC_aarch64 := aarch64-linux-gnu-gcc
# The emulator keeps a record of every page that is mapped, and arenas map half of what they may: 4 GiB.
UNDER_aarch64 := prlimit --as=4294967296 qemu-aarch64-static -L /usr/aarch64-linux-gnu
SOURCES_aarch64 := tests/c/emulated.c
AR_aarch64 := aarch64-linux-gnu-ar
LANE_CC = $(or $(CC_$(LANE)),$(CC))
# It has nothing to look for where no thread is started: such programs do not run, and are not even
# compiled if the plain lane has compiled them since they were written.
CHOSEN_tsan = $$(for program in $^; do ! nm -u $$program | grep -q pthread_create || echo $$program; done)
LEFT_OUT_tsan = $(shell cd build/ctest/plain 2>/dev/null && for name in $$(ls | grep '^test_[a-z0-9_]*$$'); do \
	test -n "$$(find $(CURDIR)/tests/c* -name $$name.c -newer $$name)" || \
	nm -u $$name | grep -q pthread_create || echo $$name; done)

# -g1: reports name lines. All else would be a fifth of the time.
C_FLAGS := -std=c11 -O1 -g1 -pthread -Wall -Wextra -Wshadow -Wmissing-prototypes -Wconversion \
	-DFL_FAULTS $(addprefix -I,csrc/base csrc/cpu $(wildcard csrc/core/*/ csrc/cpu/*/)) -Itests/c
ifeq ($(FASTLOOP_WERROR),1)
C_FLAGS += -Werror
endif
LANE_DIR := build/ctest/$(LANE)
LANE_OBJECTS := $(patsubst %.c,$(LANE_DIR)/%.o,$(wildcard csrc/base/*.c csrc/core/*/*.c csrc/cpu/*.c csrc/cpu/*/*.c))
# Of an archive each program links what it needs.
LANE_FLOORS := $(patsubst %.c,$(LANE_DIR)/%.o,$(SOURCES_$(LANE))) $(LANE_DIR)/floors.a
LANE_TESTS := $(patsubst tests/c/%.c,$(LANE_DIR)/%,$(sort $(wildcard tests/c/test_*.c)))

# The CUDA floor without a toolkit: over tests/cuda/fake, whose streams may run late; kernels as C++
# through tests/cuda/shim, which runs them on fibers.
CUDA_FLAGS := -Icsrc/cuda -Icsrc/vendor -Itests/cuda -Itests/cuda/fake -Itests/cuda/shim -DFL_CUDA_ARCHS='"75 80"'
CUDA_OBJECTS := $(patsubst %,$(LANE_DIR)/%.o,csrc/cuda/fl_cuda csrc/cuda/fl_cuda_runtime csrc/cuda/fl_cuda_host_range csrc/cuda/fl_cuda_grad \
	csrc/cuda/fl_cuda_kernels csrc/cuda/fl_cuda_cast csrc/cuda/fl_cuda_gather csrc/cuda/fl_cuda_images csrc/cuda/fl_cuda_ragged csrc/cuda/fl_cuda_widen csrc/cuda/fl_cuda_windows \
	tests/cuda/shim_grid) $(patsubst %.c,$(LANE_DIR)/%.o,\
	$(filter-out %/fake_kernels.c %/fake_torch.c,$(wildcard tests/cuda/fake/*.c)))
TRANSFER_OBJECTS := $(patsubst %.c,$(LANE_DIR)/%.o,csrc/cuda/fl_cuda.c csrc/cuda/fl_cuda_runtime.c csrc/cuda/fl_cuda_transfer.c \
	$(wildcard tests/cuda/fake/*.c))
LANE_TESTS += $(patsubst tests/cuda/%.c,$(LANE_DIR)/%,$(sort $(wildcard tests/cuda/test_*.c)))

export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1

RUN_LANE = $(MAKE) --no-print-directory $(if $(findstring j,$(MAKEFLAGS)),,-j$(JOBS)) run-lane
# Take more than a second in the plain lane.
SLOW_C_TESTS := test_copier_threads test_cuda_grad test_cuda_images test_cuda_queue test_grad test_ring \
	test_shm_queue_death test_shm_queue_steps test_shm_queue_threads test_shm_queue_wild \
	test_transfer_copier_faults test_transfer_faults test_transfer_order
LEFT_OUT :=

ctest:
	@$(RUN_LANE) LANE=plain
asan tsan:
	@$(RUN_LANE) LANE=$@
aarch64: export LEFT_OUT_TESTS = $(shell sed -n 's/^\(test_[^:]*\):.*/\1/p' tests/c/emulated.txt)
aarch64:
	@$(RUN_LANE) LANE=$@ LEFT_OUT='$(basename $(notdir $(wildcard tests/cuda/test_*.c)))'
	@echo 'aarch64: the emulator cannot run'; grep '^test_' tests/c/emulated.txt

$(LANE_DIR)/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '$(LANE): $<'
	@$(LANE_CC) $(C_FLAGS) $(SANITIZE_$(LANE)) -MMD -MP -c $< -o $@

# In the frames that ASan keeps for use after return, gcc 12 leaves 64-byte vectors unaligned.
build/ctest/asan/csrc/cpu/%_avx512.o: C_FLAGS += --param asan-use-after-return=0

$(LANE_DIR)/csrc/cuda/%.o $(LANE_DIR)/tests/cuda/%.o: C_FLAGS += $(CUDA_FLAGS)

# The shim keeps its own books across fibers, behind the back of the sanitizers.
$(LANE_DIR)/tests/cuda/shim_grid.o: SANITIZE_$(LANE) :=

$(LANE_DIR)/%.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo '$(LANE): $<'
	@$(CXX) -x c++ -std=c++17 -fno-exceptions -fno-rtti -fno-strict-aliasing -ffp-contract=off \
		$(filter-out -std=c11 -Wmissing-prototypes,$(C_FLAGS)) -Wno-unknown-pragmas \
		$(SANITIZE_$(LANE)) -MMD -MP -c $< -o $@

$(LANE_DIR)/floors.a: $(LANE_OBJECTS)
	@rm -f $@ && $(or $(AR_$(LANE)),ar) rcs $@ $^

$(LANE_DIR)/test_%: $(LANE_DIR)/tests/c/test_%.o $(LANE_FLOORS)
	@$(LANE_CC) -pthread $(SANITIZE_$(LANE)) $^ -o $@ -lm

$(LANE_DIR)/test_cuda_%: $(LANE_DIR)/tests/cuda/test_cuda_%.o $(CUDA_OBJECTS) $(LANE_FLOORS)
	@$(LANE_CC) -pthread $(SANITIZE_$(LANE)) $^ -o $@ -lm

$(LANE_DIR)/test_transfer_%: $(LANE_DIR)/tests/cuda/test_transfer_%.o $(TRANSFER_OBJECTS) $(LANE_FLOORS)
	@$(LANE_CC) -pthread $(SANITIZE_$(LANE)) $^ -o $@ -lm

.PHONY: run-lane
.SECONDARY:
run-lane: $(filter-out $(addprefix $(LANE_DIR)/,$(LEFT_OUT) $(LEFT_OUT_$(LANE))),$(LANE_TESTS))
	@$(PYTHON) tests/c/run_programs.py $(LANE) $(JOBS) $(C_TEST_TIMEOUT) '$(UNDER_$(LANE))' $(or $(CHOSEN_$(LANE)),$^)

-include $(wildcard $(LANE_DIR)/*/*/*.d $(LANE_DIR)/*/*/*/*.d $(LANE_DIR)/*/*/*/*/*.d)

# ---- lint

C_FILES = $(shell find csrc tests/c tests/cuda -path csrc/vendor -prune -o -name '*.[ch]' -print \
	-o -name '*.cu' -print -o -name '*.cuh' -print)

.PHONY: lint-c lint-python lint-types lint-house
lint: lint-c lint-python lint-types lint-house

lint-c: $(STAMPS)/requirements
	$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)

lint-python: $(STAMPS)/requirements
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

lint-types: $(STAMPS)/requirements
	$(VENV)/bin/mypy --strict fastloop/

lint-house: install
	$(PYTEST) $(CURDIR)/tests/house

# ---- the site

docs: $(STAMPS)/docs-requirements
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	@echo 'docs: build/site/index.html; to search, $(VENV)/bin/python -m http.server -d build/site'

$(STAMPS)/docs-requirements: requirements-docs.txt | $(STAMPS)/venv
	$(PIP) install -r requirements-docs.txt
	touch $@

# ---- the rest

sdist: $(STAMPS)/requirements
	$(VENV)/bin/python -m build --sdist --no-isolation

# ---- wheels: each Python builds its own, and auditwheel names the oldest glibc that it runs on

# A shim of pyenv may be there without the Python behind it, so each is asked.
PYTHONS ?= $(foreach minor,10 11 12 13 14,$(shell python3.$(minor) -c 'import sys; print(sys.executable)' \
	2>/dev/null))
WHEELS ?= dist
# --no-build-isolation takes setuptools and NumPy from that Python instead of from the index.
WHEEL_FLAGS ?=
BUILT_WHEELS := build/wheels

wheel: $(STAMPS)/requirements
	@test -n '$(strip $(PYTHONS))' || \
		{ echo 'no python3.10 to python3.14 in PATH; name some: make wheel PYTHONS="..."'; exit 1; }
	rm -rf $(BUILT_WHEELS)
	for python in $(PYTHONS); do \
		rm -rf build/lib.* build/bdist.* && \
		$(PIP) --python "$$python" wheel --no-deps $(WHEEL_FLAGS) -w $(BUILT_WHEELS) . || exit 1; \
	done
	PATH="$(VENV)/bin:$$PATH" $(VENV)/bin/python -m auditwheel repair -w '$(WHEELS)' \
		$(BUILT_WHEELS)/*.whl

test-wheels: $(STAMPS)/requirements
	export FASTLOOP_WHEELS='$(abspath $(WHEELS))' FASTLOOP_PYTHONS='$(PYTHONS)'; \
		$(PYTEST) $(CURDIR)/tests/packaging/test_wheels.py $(PYTEST_ARGS)

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find fastloop tests benchmarks examples -name __pycache__ -exec rm -rf {} +

distclean: clean
	rm -rf .venv
