#!/bin/bash
# clang-tidy, warnings as errors. usage: tidy.sh BUILD [--all]
# By default on sources changed since the last tag (all, where there is no tag), newest commits
# first, for at most ZEROPP_TIDY_SECONDS (480); what was not reached is listed. Headers are checked
# through the sources that include them.
set -eu
cd "$(dirname "$0")/.."
build=$1
seconds=${ZEROPP_TIDY_SECONDS:-480}
[ "${2:-}" != --all ] || seconds=86400
[ -f "$build/compile_commands.json" ] || { echo "tidy: no $build/compile_commands.json" >&2; exit 1; }

tag=$(git describe --tags --abbrev=0 2>/dev/null || true)
[ "${2:-}" != --all ] || tag=
range=${tag:+$tag..}HEAD
# Most recently committed first, each once; uncommitted changes before all.
changed=$({ git diff --name-only HEAD; git log --format= --name-only "$range"; } | awk '!seen[$0]++')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for f in $changed; do
  case $f in *.cc) ;; *) continue ;; esac
  [ -f "$f" ] && grep -q "/$f\"" "$build/compile_commands.json" && echo "$f" >>"$work/files"
done
[ -s "$work/files" ] || { echo "tidy: no source changed since ${tag:-the beginning}"; exit 0; }

export build work
export deadline=$(($(date +%s) + seconds))
one() {
  [ "$(date +%s)" -lt "$deadline" ] || { echo "$1" >>"$work/skipped"; return 0; }
  if ! clang-tidy -p "$build" --quiet --warnings-as-errors='*' \
      --extra-arg=-Wno-unknown-warning-option "$1" >"$work/out.$$" 2>/dev/null; then
    cat "$work/out.$$"
    echo "$1" >>"$work/failed"
  fi
}
export -f one
xargs -n 1 -P "$(nproc)" bash -c 'one "$1"' _ <"$work/files"

total=$(wc -l <"$work/files")
skipped=$([ ! -f "$work/skipped" ] || wc -l <"$work/skipped")
echo "tidy: $((total - ${skipped:-0})) of $total sources changed since ${tag:-the beginning} checked"
[ ! -f "$work/skipped" ] || { echo "tidy: out of time before:"; sed 's/^/  /' "$work/skipped"; }
[ ! -f "$work/failed" ] || { echo "tidy: warnings in:"; sed 's/^/  /' "$work/failed"; exit 1; }
