#!/bin/bash
# Builds the unit and contract tests with a sanitizer and runs them. usage: sanitize.sh asan|tsan
# asan: AddressSanitizer + UBSan, ranks as fibers; all layers below experiments.
# tsan: ThreadSanitizer, a thread per rank, because it can follow threads but not our fibers.
set -eu
cd "$(dirname "$0")/.."
preset=$1
support=$PWD/tests/support
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export ASAN_OPTIONS=detect_stack_use_after_return=0:detect_leaks=${ZEROPP_LEAKS:-1}
export LSAN_OPTIONS=suppressions=$support/lsan.supp:print_suppressions=0
export TSAN_OPTIONS=suppressions=$support/tsan.supp:halt_on_error=1:second_deadlock_stack=1
case $preset in
  asan) layers='quant hierarchy zero' ;;
  tsan) layers='hierarchy zero'
        export ZEROPP_TEST_THREADS=1 ;;
  *) echo "usage: $0 asan|tsan" >&2; exit 2 ;;
esac

cmake --preset "$preset" >/dev/null
# shellcheck disable=SC2046  # words on purpose
cmake --build --preset "$preset" -j "$(nproc)" --target $(printf 'tests_%s ' $layers)
# TSan's shadow memory and a kernel with many random address bits do not get along.
plain=$(setarch -R true 2>/dev/null && echo setarch -R || true)
$plain ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" \
  -L "^($(echo "$layers" | tr ' ' '|'))\$" -LE '^(slow|mpi)$'  # OpenMPI is not instrumented and leaks by design.
