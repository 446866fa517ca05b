#!/bin/bash
# Checks the formatting of every C++ and CUDA source, or with --fix repairs it.
set -eu
cd "$(dirname "$0")/.."
mode=(--dry-run -Werror)
[ "${1:-}" != --fix ] || mode=(-i)
# Tracked and new files, so that a file is checked before its first commit too.
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' |
  while IFS= read -r -d '' f; do [ ! -f "$f" ] || printf '%s\0' "$f"; done |
  xargs -0 -r -n 16 -P "$(nproc)" clang-format --style=file "${mode[@]}"
