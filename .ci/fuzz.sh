#!/bin/bash
# Builds the libFuzzer targets with clang and runs them, a minute in all. usage: fuzz.sh [SECONDS [TARGET...]]
# SECONDS are for all targets together. Inputs that broke something stay in build/fuzz/found/.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift $(($# > 0))
build=build/fuzz
targets=("$@")
[ $# -gt 0 ] || targets=(decode spec piece_wire safetensors config)

cmake --preset fuzz >/dev/null
cmake --build --preset fuzz -j "$(nproc)"
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1
mkdir -p "$build/found"
declare -A seeds=([config]=experiments/configs [safetensors]=tests/fuzz/seeds/safetensors)
declare -A words=([spec]=tests/fuzz/spec.dict [config]=tests/fuzz/config.dict)
failed=0
for target in "${targets[@]}"; do
  corpus=$build/corpus/$target
  mkdir -p "$corpus"
  options=(-max_total_time=$((seconds / ${#targets[@]})) -timeout=20 -rss_limit_mb=3000
           -artifact_prefix="$build/found/$target-" -print_final_stats=1 -verbosity=0)
  [ -z "${words[$target]:-}" ] || options+=(-dict="${words[$target]}")
  printf '%s: ' "$target"
  # shellcheck disable=SC2086  # no seeds is no word
  if "$build/fuzz/fuzz_$target" "${options[@]}" "$corpus" ${seeds[$target]:-} \
      >"$build/$target.log" 2>&1; then
    awk '/number_of_executed_units|average_exec/ {printf "%s %s  ", $1, $2} END {print ""}' "$build/$target.log"
  else
    failed=1
    echo "FAILED"
    tail -n 60 "$build/$target.log"
  fi
done
exit "$failed"
