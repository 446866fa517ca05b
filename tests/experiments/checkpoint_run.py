"""Checkpoints of `zeropp run` as users have them: checkpoint_run.py MODE PROGRAM.

kill     kill -9 and SIGTERM at random points, then resume: the uninterrupted run's results
full     a disk that is full in the midst of a checkpoint: an error, older ones stay whole
forward  model.safetensors, read by Python's safetensors and run by numpy as a Hugging Face
         GPT-2, has the validation loss that zeropp reports
"""

import copy
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "fp16": {"enabled": True, "initial_scale_power": 20},
    "zero_optimization": {"stage": 3},
    "zeropp": {
        "cluster": {"nodes": 2, "ranks_per_node": 2},
        "model": {"layers": 2, "width": 16, "heads": 2, "context": 16},
        "steps": 30,
        "eval": {"every": 7, "windows": 4},
        "checkpoint": {"every": 2},
        "variants": [
            {"name": "exact", "baseline": True},
            {"name": "ef", "zeropp": {
                "secondary": "node",
                "codecs": {"weights": "int8:block=64", "gradients": "ef|int4:block=32"}}},
            {"name": "delta", "zeropp": {
                "secondary": "node",
                "codecs": {"weights": "delta|int4:block=64",
                           "gradients": "loco(reset=5)|hadamard(16)|int4:block=32"}}},
            {"name": "ef21", "zero_optimization": {"stage": 2}, "zeropp": {
                "codecs": {"weights": "ef21|int8:block=64"}}},
            {"name": "powersgd", "zeropp": {"codecs": {"gradients": "powersgd:rank=2"}}},
        ],
    },
}


def write_config(folder, change=lambda config: None):
    text = "".join(f"the quick brown fox {i * i}\n" for i in range(400))
    (Path(folder) / "corpus.txt").write_text(text)
    config = copy.deepcopy(CONFIG)
    config["zeropp"]["data"] = f"{folder}/corpus.txt"
    change(config)
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items()
                if k not in ("time_per_step_s", "time_model_s", "time_s")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def results(out):
    """Everything that an interruption may not change."""
    found = {"summary": without_times(json.loads((out / "summary.json").read_text()))}
    for job in sorted(out.glob("*/seed-*")):
        metrics = (job / "metrics.jsonl").read_text().splitlines()
        found[job.relative_to(out)] = (
            [without_times(json.loads(line)) for line in metrics],
            (job / "traffic.jsonl").read_text())
    return found


def swept(config):
    """A sweep around the variants: two codecs, one of them at two block sizes."""
    config["zeropp"]["variants"].append({"name": "swept"})
    config["zeropp"]["variants"][0]["zeropp"] = {"codecs": {"gradients": "none"}}
    config["zeropp"]["variants"][3]["zeropp"]["codecs"]["gradients"] = "none"
    config["zeropp"]["sweep"] = {
        "grid": {"block": [32, 64]}, "set": {"codecs.gradients": "int4:block=${block}"}}


def kill(program, folder):
    path = write_config(folder, swept)
    whole, cut = Path(folder) / "whole", Path(folder) / "cut"
    began = time.time()
    subprocess.run([program, "run", path, "--out", str(whole)], check=True, capture_output=True)
    took = time.time() - began
    chance = random.Random(7)
    kills = resumed = 0
    for _ in range(500):
        process = subprocess.Popen([program, "run", path, "--out", str(cut)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            patience = chance.uniform(0, took / 12) if kills < 20 else 240
            _, errors = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.send_signal(chance.choice([signal.SIGKILL] * 3 + [signal.SIGTERM]))
            _, errors = process.communicate(timeout=240)
            kills += 1
        resumed += errors.count("goes on after step")
        assert "not resumed" not in errors, errors
        if process.returncode == 0:
            break
        assert process.returncode in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM), (
            process.returncode, errors)
    assert process.returncode == 0
    assert kills >= 5 and resumed >= 3, (kills, resumed)
    first, second = results(whole), results(cut)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert second[name] == value, f"{name} differs after {kills} kills"
    for job in whole.glob("*/seed-*"):
        assert [c.name for c in job.glob("checkpoint-*")] == ["checkpoint-30"], list(job.iterdir())
    for name in ("summary.csv", "sweep.json"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
    summaries = [json.dumps(found["summary"]) for found in (first, second)]
    assert summaries[0] == summaries[1]  # To the byte, times aside.
    print(f"{kills} kills, {resumed} resumed jobs")


def limit_files(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Writing fails with EFBIG.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def full(program, folder):
    path = write_config(folder)
    out = Path(folder) / "out"
    command = [program, "run", path, "steps=4", 'variants=[{"name":"a","baseline":true}]',
               "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    job = out / "a" / "seed-1"
    before = (job / "checkpoint-4" / "model.safetensors").read_bytes()
    size = len(before)
    # The next run of other steps cannot write its model, which is larger than the limit.
    (job / "result.json").unlink()
    (job / "checkpoint-4" / "zeropp_job.json").write_text("{}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=240,
                          preexec_fn=lambda: limit_files(size - 100))
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "not resumed from" in done.stderr and "another config" in done.stderr, done.stderr
    assert "expected a file that can be written" in done.stderr, done.stderr
    status = json.loads((job / "status.json").read_text())
    assert status["status"] == "error" and "model.safetensors" in status["message"], status
    assert not list(job.glob("checkpoint-*")), list(job.iterdir())
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (job / "checkpoint-4" / "model.safetensors").read_bytes() == before


def layer_norm(np, x, weight, bias, eps):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * weight + bias


def gpt2_loss(np, tensors, config, tokens, targets):
    """Hugging Face's GPT2LMHeadModel, in double precision."""
    w = {k.removeprefix("transformer."): v.astype(np.float64) for k, v in tensors.items()}
    heads, eps = config["n_head"], config["layer_norm_epsilon"]
    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    batch, length, width = x.shape
    mask = np.triu(np.full((length, length), -np.inf), 1)
    for i in range(config["n_layer"]):
        def part(name, value):  # Conv1D: [in, out].
            return value @ w[f"h.{i}.{name}.weight"] + w[f"h.{i}.{name}.bias"]
        normed = layer_norm(np, x, w[f"h.{i}.ln_1.weight"], w[f"h.{i}.ln_1.bias"], eps)
        q, k, v = np.split(part("attn.c_attn", normed), 3, -1)
        q, k, v = (t.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for t in (q, k, v))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads) + mask
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = scores / scores.sum(-1, keepdims=True) @ v
        x = x + part("attn.c_proj", mixed.transpose(0, 2, 1, 3).reshape(batch, length, width))
        u = part("mlp.c_fc", layer_norm(np, x, w[f"h.{i}.ln_2.weight"], w[f"h.{i}.ln_2.bias"], eps))
        u = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u ** 3)))
        x = x + part("mlp.c_proj", u)
    logits = layer_norm(np, x, w["ln_f.weight"], w["ln_f.bias"], eps) @ w.get(
        "lm_head.weight", w["wte.weight"]).T
    top = logits.max(-1, keepdims=True)
    log_z = top[..., 0] + np.log(np.exp(logits - top).sum(-1))
    return (log_z - np.take_along_axis(logits, targets[..., None], -1)[..., 0]).mean()


def forward(program, folder):
    try:
        import numpy as np
        from safetensors import safe_open
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)

    for tied in (True, False):
        def change(config):
            del config["fp16"]
            config["zeropp"]["model"]["tied"] = tied
            config["zeropp"]["eval"] = {"windows": 8}
            config["zeropp"]["variants"] = [{"name": "a", "baseline": True}]
        out = Path(folder) / f"out{tied}"
        subprocess.run([program, "run", write_config(folder, change), "--out", str(out)],
                       check=True, capture_output=True)
        job = out / "a" / "seed-1"
        checkpoint = job / "checkpoint-30"
        config = json.loads((checkpoint / "config.json").read_text())
        for name in ("model", "optimizer", "codec_state", "ranks"):
            with safe_open(checkpoint / f"{name}.safetensors", framework="numpy") as file:
                assert file.metadata()["format"] == "pt"
                tensors = {key: file.get_tensor(key) for key in file.keys()}
            if name == "model":
                model = tensors
            if name == "optimizer":
                assert {k[2:] for k in tensors} == {
                    k.removeprefix("transformer.") for k in model}, sorted(tensors)
        assert ("lm_head.weight" in model) != tied
        assert model["transformer.h.0.attn.c_attn.weight"].shape == (16, 48)
        text = np.frombuffer((Path(folder) / "corpus.txt").read_bytes(), np.uint8).astype(int)
        held_out = int(len(text) * 0.05 + 1e-9)
        windows = np.stack([text[len(text) - held_out + 16 * i:][:17] for i in range(8)])
        loss = gpt2_loss(np, model, config, windows[:, :-1], windows[:, 1:])
        said = json.loads((job / "result.json").read_text())["final_val_loss"]
        assert abs(loss - said) < 2e-6, (loss, said)
        model["transformer.h.0.attn.c_proj.weight"] = (
            model["transformer.h.0.attn.c_proj.weight"].T)  # The wrong layout is another model.
        assert abs(gpt2_loss(np, model, config, windows[:, :-1], windows[:, 1:]) - said) > 1e-5
        print(f"loss {loss:.9f} by numpy, {said:.9f} by zeropp")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        {"kill": kill, "full": full, "forward": forward}[sys.argv[1]](sys.argv[2], temporary)
    print(f"{sys.argv[1]}: good")
