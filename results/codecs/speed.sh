#!/bin/sh
# Makes speed.json here: five rounds of short timings of one codec of each kind, a process each,
# with a memcpy of the same view in the same process. usage: speed.sh [COMMAND before each]
set -eu
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
for round in 1 2 3 4 5; do
  i=0
  for spec in int8 int8:rounding=stochastic int6 int5 int4 int4:rounding=stochastic int3 int2 \
    int4:scheme=asymmetric fp8 mxfp8 mxfp6 mxfp4 nvfp4 nvfp4:scale=4over6 nf4 \
    'hadamard(32)|int8' 'hadamard(32)|int4' 'hadamard(32,random=yes)|eden|int4' 'ef|int4' \
    'loco|int4' 'ef21|int4' 'delta|int4' topk:ratio=0.01 'ef|topk:ratio=0.01' sign 'ef|sign' \
    codebook lossless; do
    i=$((i + 1))
    "$@" build/zeropp codecs --measure --codec "$spec" --dtype fp32 --dtype bf16 --ranks 2 \
      --ranks-per-node 1 --roundings 4 --repetitions 15 --json >"$folder/$round.$(printf %02d "$i")"
  done
done
python3 - "$folder" >results/codecs/speed.json <<'EOF'
import json, pathlib, statistics, sys
runs = {}
for path in sorted(pathlib.Path(sys.argv[1]).iterdir(), key=lambda p: p.name.split(".")[::-1]):
    for row in json.loads(path.read_text()):
        runs.setdefault((row["spec"], row["dtype"]), []).append(row)
rows = []
for (spec, dtype), list_ in runs.items():
    row = {"spec": spec, "dtype": dtype, "n": list_[0]["n"], "rounds": len(list_)}
    row["memcpy_gbs"] = round(statistics.median(r["memcpy_gbs"] for r in list_), 1)
    for what in ("encode", "decode", "reduce_encode"):
        x = sorted(r[what + "_gbs"] / r["memcpy_gbs"] for r in list_)
        row[what] = {"memcpys": round(statistics.median(x), 3), "least": round(x[0], 3),
                     "most": round(x[-1], 3)}
    rows.append(json.dumps(row))
print("[" + ",\n ".join(rows) + "]")
EOF
