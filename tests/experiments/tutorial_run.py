"""The commands of experiments/TUTORIAL.md, small: tutorial_run.py PROGRAM SOURCE."""

import csv
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = ["steps=2", "eval.windows=2", "model.layers=1", "model.width=16", "model.heads=2",
         "model.context=16"]


def main(program, source, folder):
    text = (Path(source) / "experiments" / "TUTORIAL.md").read_text()
    commands = [line.split() for block in re.findall(r"```sh\n(.*?)```", text, re.S)
                for line in block.splitlines()]
    assert len(commands) == 3, commands
    corpus = Path(folder) / "corpus.txt"
    corpus.write_text("".join(f"the quick brown fox {i * i}\n" for i in range(400)))
    printed = []
    for command in commands:
        command = [word.replace("results/runs", folder) for word in command]
        if command[0].endswith("/zeropp"):
            command = [program, *command[1:], f"data={corpus}", *SMALL]
        elif importlib.util.find_spec("matplotlib") is None:
            print("skipped the picture: no matplotlib")
            continue
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        printed.append(done.stdout)
    out = Path(folder) / "blocks"
    rows = list(csv.DictReader((out / "summary.csv").open()))
    assert len(rows) == 20 and {row["status"] for row in rows} == {"ok"}, rows
    assert {row["block"] for row in rows} == {"", "64", "256", "1024"}, rows
    assert all(row["compared_with"] == "exact" for row in rows), rows
    assert len(json.loads((out / "sweep.json").read_text())["variants"]) == 10


with tempfile.TemporaryDirectory() as temporary:
    main(sys.argv[1], sys.argv[2], temporary)
