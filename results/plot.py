#!/usr/bin/env python3
"""Draws the picture of a run from its summary.json: bytes between nodes, loss against exact.

usage: results/plot.py results/quickstart/summary.json results/quickstart/picture.svg
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


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
