# Front door. The build itself is CMake's; everything here is a short name for a command.
#   make quickstart   install what is missing, build, train the example      make help
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE_ARGS ?=
CONFIG ?= experiments/configs/quickstart.json

.DEFAULT_GOAL := help
.PHONY: quickstart test build bench format check asan tsan fuzz deps deps-python deps-check clean help

quickstart: $(BUILD)/build.ninja  ## install, build, run the quickstart configuration
	ninja -C $(BUILD) -j $(JOBS) zeropp
	$(BUILD)/zeropp run $(CONFIG)

test: build  ## build what is missing and run all tests
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS)

build: $(BUILD)/build.ninja  ## build program, tests and benchmarks into build/
	ninja -C $(BUILD) -j $(JOBS)

bench: build  ## run the benchmarks (alone on the machine, or times mean little)
	@for b in $(BUILD)/bench/*_bench; do echo "== $$b"; $$b || exit 1; done

format: deps-check  ## format all sources in place
	.ci/format.sh --fix

check: deps-check $(BUILD)/build.ninja  ## formatting, then clang-tidy on changed files (ALL=1: on all)
	.ci/format.sh
	.ci/tidy.sh $(BUILD) $(if $(ALL),--all)

asan tsan: deps  ## unit and contract tests under AddressSanitizer+UBSan, or ThreadSanitizer
	.ci/sanitize.sh $@

fuzz: deps-check  ## libFuzzer targets, a minute in all (SECONDS=600: longer)
	.ci/fuzz.sh $(SECONDS)

deps:  ## install missing Debian packages (asks sudo when not root)
	@cmake/deps.sh build

deps-python: deps-check  ## Python packages of the tests that read our files with other tools (PyPI)
	python3 -m venv $(BUILD)/python
	$(BUILD)/python/bin/pip install --quiet -r tests/tools/requirements.txt

deps-check: deps
	@cmake/deps.sh check

# Configured once; afterwards ninja itself notices changed CMake files.
$(BUILD)/build.ninja: | deps
	cmake -S . -B $(BUILD) -G Ninja $(CMAKE_ARGS)

clean:  ## remove build/
	rm -rf $(BUILD)

help:  ## this list
	@awk -F '## ' '/^[a-z][a-z -]*:.*## / {split($$1, t, ":"); printf "  make %-12s %s\n", t[1], $$2}' \
	  $(MAKEFILE_LIST)
