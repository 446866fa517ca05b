#!/usr/bin/env python3
"""Draws pictures of results.

usage: results/plot.py results/quickstart/summary.json results/quickstart/picture.svg
           a run: bytes between nodes, loss against exact
       results/plot.py codecs FILE.json PICTURE.svg|png
           what `zeropp codecs --measure --json` printed: error against bits
Needs matplotlib (Debian: python3-matplotlib); the program itself does not.
"""
import json
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "zeropp"
import matplotlib.pyplot as plt  # noqa: E402

PARTS = [("payload", "coded payload", "#4477aa"), ("exact", "exact", "#bbbbbb"),
         ("scale", "scales", "#ee6677"), ("padding", "padding", "#222222")]
MARKERS = "os^D"  # Ten colours each.


def main(source, target):
    with open(source, encoding="utf-8") as f:
        summary = json.load(f)
    variants = summary["variants"]
    link = summary["cluster"]["levels"][-1]["name"]
    names = [v["name"] for v in variants]
    out = [v["traffic_per_step"][link]["bytes_out_max_node"] / 1e6 for v in variants]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))

    bottom = [0.0] * len(variants)
    for key, label, colour in PARTS:
        sizes = []
        for v, total in zip(variants, out):
            by = v["traffic_per_step"][link]["by"]
            everything = sum(row[k] for row in by for k, _, _ in PARTS)
            sizes.append(total * sum(row[key] for row in by) / everything)
        left.barh(names, sizes, left=bottom, color=colour, label=label)
        bottom = [b + s for b, s in zip(bottom, sizes)]
    for i, total in enumerate(out):
        left.text(total, i, f" {total:.2f}", va="center", fontsize=9)
    left.invert_yaxis()
    left.set_xlabel(f"MB out of the busiest node over '{link}' in one step, counted")
    left.legend(frameon=False, fontsize=9, loc="lower right")

    base = next(v for v in variants if v["baseline"])
    exact = {s["seed"]: s["final_val_loss"] for s in base["seeds"]}
    for i, v in enumerate(variants):
        differences = [s["final_val_loss"] - exact[s["seed"]] for s in v["seeds"]]
        right.plot(differences, [i] * len(differences), "o", color="#4477aa", markersize=5)
    right.axvline(0, color="#bbbbbb", linewidth=1)
    right.set_yticks(range(len(names)), [""] * len(names))
    right.set_ylim(left.get_ylim())
    right.set_xlabel(f"validation loss minus {base['name']}'s of the same seed (nats/byte)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def number(value):
    """Non-finite floats travel as the strings "nan", "inf", "-inf"."""
    return float(value)


def codec_name(row):
    """int4 of "hadamard(32)|int4:block=64"."""
    return row["spec"].split("|")[-1].split(":")[0]


def codecs(source, target):
    with open(source, encoding="utf-8") as f:
        rows = json.load(f)
    names = sorted({codec_name(row) for row in rows})
    groups = {}
    for row in rows:
        point = (number(row["bits_per_element"]), number(row["nmse"]), row)
        group = groups.setdefault((row["data"], row["dtype"]), [])
        if point[1] > 0:  # Exact ones have no place on a logarithmic axis.
            group.append(point)
    figure, axes = plt.subplots(len(groups), 1, squeeze=False, figsize=(9, 5 * len(groups)))
    for ((data, dtype), points), plot in zip(groups.items(), axes[:, 0]):
        for i, name in enumerate(names):
            mine = [p for p in points if codec_name(p[2]) == name]
            if mine:
                plot.plot([p[0] for p in mine], [p[1] for p in mine], MARKERS[i // 10 % 4],
                          color=f"C{i % 10}", markersize=5, label=name)
            for bits, error, row in mine if len(rows) <= 20 else []:
                plot.annotate(row["spec"], (bits, error), fontsize=7, xytext=(4, 3),
                              textcoords="offset points")
        if points:
            plot.set_xscale("log", base=2)
            plot.set_yscale("log")
            plot.xaxis.set_major_formatter("{x:g}")
            plot.legend(frameon=False, fontsize=8, ncols=2)
        plot.set_title(f"{data}, {dtype}", fontsize=10)
        plot.set_xlabel("bits sent per number, scales and padding counted")
        plot.set_ylabel("NMSE")
        plot.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None} if target.endswith(".svg") else None)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "codecs":
        codecs(*sys.argv[2:])
    elif len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
