"""What `zeropp run` writes for TensorBoard, read by TensorBoard: tensorboard_run.py PROGRAM."""

import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from checkpoint_run import write_config

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def fp32(value):
    return struct.unpack("f", struct.pack("f", float(value)))[0]


def equal(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def check_job(board, job):
    """The event file in `board` has what metrics.jsonl of `job` says; its group's name."""
    files = list(board.glob("events.out.tfevents.*"))
    assert len(files) == 1, files
    events = EventAccumulator(str(board)).Reload()
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    for tag in ("train/loss", "grad_norm", "lr", "loss_scale", "skipped_steps", "time_s",
                "val/loss"):
        wanted = [(m["step"], fp32(m[tag])) for m in lines if tag in m]
        found = [(e.step, e.value) for e in events.Scalars(tag)]
        assert len(wanted) == len(found) > 0, (tag, wanted, found)
        for w, f in zip(wanted, found):
            assert w[0] == f[0] and equal(w[1], f[1]), (tag, w, f)
    content = events.summary_metadata
    start = plugin_data_pb2.HParamsPluginData.FromString(
        content["_hparams_/session_start_info"].plugin_data.content).session_start_info
    end = plugin_data_pb2.HParamsPluginData.FromString(
        content["_hparams_/session_end_info"].plugin_data.content).session_end_info
    assert end.status == 1, end
    assert start.hparams["variant"].string_value == job.parent.name, start
    return start.group_name


def run(program, config, out):
    done = subprocess.run([program, "run", config, "--out", str(out)], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr


def few(config):
    config["zeropp"].update(steps=8, seeds=2)
    config["zeropp"]["variants"] = config["zeropp"]["variants"][:2]
    config["tensorboard"] = {"enabled": True}


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        config, out = write_config(folder, few), Path(folder) / "out"
        run(program, config, out)
        groups = {v: {check_job(out / v / s, out / v / s) for s in ("seed-1", "seed-2")}
                  for v in ("exact", "ef")}
        assert all(len(names) == 1 for names in groups.values()), groups  # Seeds together.
        assert groups["exact"] != groups["ef"], groups

        elsewhere = Path(folder) / "boards"

        def moved(config):
            few(config)
            config["tensorboard"].update(output_path=str(elsewhere), job_name="mine")

        run(program, write_config(folder, moved), out)  # Files of another place: done again.
        check_job(elsewhere / "mine" / "ef" / "seed-2", out / "ef" / "seed-2")
        assert not list(out.rglob("*tfevents*")), "left behind"

        def off(config):
            few(config)
            config["tensorboard"]["enabled"] = False

        plain = Path(folder) / "plain"
        run(program, write_config(folder, off), plain)
        assert not list(plain.rglob("*tfevents*"))
        sha = [[s["state_sha256"] for v in json.loads((o / "summary.json").read_text())["variants"]
                for s in v["seeds"]] for o in (out, plain)]
        assert sha[0] == sha[1], sha

        def lonely(config):
            few(config)
            config["tensorboard"]["job_name"] = "mine"

        done = subprocess.run([program, "run", write_config(folder, lonely)],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "output_path" in done.stderr, done


if __name__ == "__main__":
    main(sys.argv[1])
