#!/bin/sh
# Makes codecs.json and codecs.svg here: error, bits and speed of one codec of each kind.
set -eu
cd "$(dirname "$0")/../.."
set -- bf16 fp16 int8 int8:rounding=stochastic int6 int5 int4 int4:rounding=stochastic int3 int2 \
  int4:scheme=asymmetric fp8 mxfp8 mxfp6 mxfp4 nvfp4 nvfp4:scale=4over6 nf4 \
  'hadamard(32)|int8' 'hadamard(32)|int4' 'hadamard(32,random=yes)|eden|int4' 'ef|int4' \
  'loco|int4' 'ef21|int4' 'delta|int4' topk:ratio=0.01 sign codebook lossless
args=
for spec in "$@"; do args="$args --codec $spec"; done
run() {
  # shellcheck disable=SC2086  # no spec has a blank
  build/zeropp codecs --measure $args --dtype fp32 --dtype bf16 --data normal --data heavy-tailed "$@"
}
run --json --picture results/codecs/codecs.svg >results/codecs/codecs.json
