"""`zeropp run` under mpirun against virtual ranks: mpi_run.py MODE PROGRAM MPIRUN [RANKS].

equal   losses, state, traffic and memory of every variant are those of virtual ranks
bench   the same rows, bytes and errors, and OpenMPI's own collectives beside them
kill    one of six processes dies by SIGKILL: all end soon, and not with 0
refuse  what cannot run is refused by one line of rank 0, with exit code 2
verify  `zeropp verify --transport mpi` on every so-manieth run holds, and notices other processes
throw   a plug-in's codec throws on one rank: all end soon, with its words, on both transports
hosts   the config's nodes against the machines that MPI sees
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALL = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zeropp": {
        "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
        "steps": 3,
        "eval": {"windows": 4, "every": 2},
    },
}


def variants(nodes):
    three = {"zero_optimization": {"stage": 3}}
    coded = {"codecs": {"weights": "int8:block=64", "gradients": "int4:block=64"}}
    hpz = {"secondary": "node"} if nodes > 1 else {}
    found = [
        {"name": f"stage{stage}", "baseline": stage == 0, "zero_optimization": {"stage": stage}}
        for stage in range(4)
    ]
    found.append({"name": "hierarchical", **three, "zeropp": {"algorithm": "hierarchical"}})
    found.append({"name": "zeropp", **three,
                  "zeropp": {**coded, **hpz, "measure": {"gradient_error": True}}})
    found.append({"name": "replicas", **three, "zeropp": {**coded, "measure": {"replicas": True}}})
    return found


def config(folder, ranks, **keys):
    nodes = 2 if ranks % 2 == 0 and ranks > 2 else 1
    made = json.loads(json.dumps(SMALL))
    made["zeropp"]["cluster"] = {"nodes": nodes, "ranks_per_node": ranks // nodes}
    made["zeropp"]["variants"] = variants(nodes)
    made["zeropp"].update(keys)
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(made))
    return str(path)


def mpirun(mpi, ranks, *command):
    return [mpi, "--oversubscribe", "-np", str(ranks), *command]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


def load(folder, name):
    seed = Path(folder) / name / "seed-1"
    result = json.loads((seed / "result.json").read_text())
    for own in ("hash", "time_per_step_s", "time_model_s"):
        del result[own]
    status = json.loads((seed / "status.json").read_text())["status"]
    return status, result, (seed / "traffic.jsonl").read_text()


def equal(program, mpi, folder, ranks):
    path = config(folder, ranks)
    outs = {"virtual": [program], "mpi": mpirun(mpi, ranks, program)}
    for transport, command in outs.items():
        out = f"{folder}/{transport}"
        code, printed, errors = run([*command, "run", path, "--transport", transport, "--out", out])
        assert code == 0, (transport, code, errors)
        assert printed.count("summary.json") == 1, printed  # Rank 0 alone prints.
    for variant in variants(2):
        name = variant["name"]
        a, b = (load(f"{folder}/{transport}", name) for transport in outs)
        assert a[0] == b[0] == "ok", (a[0], b[0])
        for key, value in a[1].items():
            assert b[1][key] == value, (name, key, value, b[1][key])
        assert a[2] == b[2] and a[2].count('"rank"') >= ranks, f"{name}: traffic.jsonl differs"
    # Finished jobs are kept: all ranks must know.
    again = [*outs["mpi"], "run", path, "--transport=mpi", f"--out={folder}/mpi"]
    code, _, errors = run(again)
    assert code == 0, (code, errors)


def bench(program, mpi, folder, ranks):
    del folder
    options = ["bench", "-e", "100K", "-n", "2", "--json", "--codec", "exact", "--codec", "int4",
               "--ranks-per-node", "2"]
    found = {}
    for transport, command in (("virtual", [program, *options, "--ranks", str(ranks)]),
                               ("mpi", mpirun(mpi, ranks, program, *options, "--transport=mpi"))):
        code, printed, errors = run(command)
        assert code == 0, (transport, code, errors)
        rows = json.loads(printed)
        assert not any(row["wrong"] for row in rows), rows
        found[transport] = rows
    key = ("collective", "algorithm", "codec", "bytes", "wire_bytes", "xnode_bytes", "nmse")
    virtual, real = ([[row[k] for k in key] for row in rows] for rows in found.values())
    peers = [row for row in real if row[0].startswith("MPI_")]
    assert {row[0] for row in peers} == {"MPI_Allreduce", "MPI_Allgather"}, peers
    assert [row for row in real if row not in peers] == virtual


def children(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def started(job):
    """Waits until training steps are written."""
    deadline = time.time() + 120
    while time.time() < deadline:
        part = job / "metrics.jsonl.part"
        if part.exists() and part.read_text().count("\n") >= 2:
            return
        time.sleep(0.02)
    raise AssertionError("no step in time")


def kill(program, mpi, folder, victim):
    path = config(folder, 6, steps=1000000, timeout_s=20)
    command = mpirun(mpi, 6, program, "run", path, "transport=mpi", "--out", f"{folder}/out")
    with open(f"{folder}/err", "w+", encoding="utf-8") as err:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err)
        try:
            job = Path(folder) / "out" / "stage0" / "seed-1"
            started(job)
            ranks = sorted(children(process.pid), key=rank_of)
            assert len(ranks) == 6, ranks
            os.kill(ranks[victim], signal.SIGKILL)
            code = process.wait(timeout=60)
        finally:
            process.kill()
    assert code != 0, code
    deadline = time.time() + 30
    while left := [pid for pid in ranks if Path(f"/proc/{pid}").exists()]:
        assert time.time() < deadline, left
        time.sleep(0.05)
    status = json.loads((job / "status.json").read_text())
    if victim == 0:  # It died writing nothing: a survivor did.
        assert "rank 0 said nothing" in status["message"], status
    assert status["status"] in ("killed", "error"), status
    assert "sequence" in status["message"] or "after step" in status["message"], status


def rank_of(pid):
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    name = b"OMPI_COMM_WORLD_RANK="
    return next(int(v[len(name):]) for v in environment if v.startswith(name))


def refuse(program, mpi, folder, _):
    path = config(folder, 2)
    out = ["--out", f"{folder}/out"]
    for extra, words in (
        (["transport=mpi", "cluster.nodes=3"], "[zeropp.cluster] expected as many ranks as"),
        ([], "[zeropp.transport] expected mpi for 2 processes"),
        (["transport=mpi", "bogus=1"], "found 'bogus'"),
        (["transport=mpi", "zero_optimization.reduce_bucket_size=x"], "reduce_bucket_size"),
    ):
        code, printed, errors = run(mpirun(mpi, 2, program, "run", path, *out, *extra))
        lines = [line for line in errors.split("\n") if line.startswith("zeropp:")]
        assert code == 2 and printed == "", (extra, code, printed)
        assert len(lines) == 1 and words in lines[0], (extra, errors)
        assert not Path(f"{folder}/out").exists()
    code, _, errors = run(mpirun(mpi, 2, program, "run", path, "transport=mpi", "--out", "/proc/x"))
    assert code == 2 and errors.count("zeropp: [output]") == 1, (code, errors)


# One test takes each so-manieth run of the matrix: the processes share two cores.
EVERY = {2: 4, 3: 6, 4: 6, 6: 8, 8: 12}


def verify(program, mpi, _, ranks):
    code, printed, errors = run(mpirun(mpi, ranks, program, "verify", "--transport", "mpi",
                                       "--every", str(EVERY[ranks]), "--json"))
    assert code == 0, (code, printed, errors)
    result = json.loads(printed)  # Rank 0 alone prints.
    assert result["runs"] >= 3 and result["differences"] == [], result
    code, printed, errors = run(mpirun(mpi, ranks, program, "verify", "--filter", "fp16"))
    assert code == 2 and printed == "" and "--transport" in errors, (code, errors)


def throw(program, mpi, folder, plugin):
    path = config(folder, 6, steps=4)
    made = json.loads(Path(path).read_text())
    made["zeropp"]["variants"] = [{"name": "thrower", "baseline": True}]
    made["zero_optimization"] = {"stage": 3}
    made["zeropp"]["codecs"] = {"gradients": "throws"}
    made["zeropp"]["timeout_s"] = 100
    Path(path).write_text(json.dumps(made))
    for transport in ("virtual", "mpi"):
        command = [program] if transport == "virtual" else mpirun(mpi, 6, program)
        out = f"{folder}/{transport}"
        start = time.time()
        code, _, errors = run([*command, "run", path, "--plugin", plugin, "--transport", transport,
                               "--out", out])
        assert code == 1, (transport, code, errors)
        assert time.time() - start < 60, "it waited for the timeout"
        status = json.loads((Path(out) / "thrower" / "seed-1" / "status.json").read_text())
        assert status["status"] == "error", status
        for words in ("rank 3 failed in ", "sequence ", "encode is broken"):
            assert words in status["message"], (transport, status)
            assert words in errors, (transport, errors)


def hosts(program, mpi, folder, _):
    """Ranks 0, 1 and 2, 3 on machines of their own, or 0, 2 and 1, 3."""
    path = config(folder, 4, steps=1)
    out = ["transport=mpi", "--out", f"{folder}/out"]

    def on(machine, *extra):
        shell = f'ZEROPP_MPI_NODE=$(({machine})) exec "$@"'
        command = mpirun(mpi, 4, "sh", "-c", shell, "sh", program, "run", path, *out)
        code, _, errors = run([*command, *extra])
        return code, errors

    rank = "OMPI_COMM_WORLD_RANK"
    for machine, extra, want, words in (
        (f"{rank} / 2", ["cluster.check=exact"], 0, ""),
        (f"{rank} % 2", [], 2, "the 2 ranks of each node on one machine"),
        (f"{rank} % 2", ["cluster.check=off"], 0, ""),
        ("0", [], 0, ""),
        ("0", ["cluster.check=exact"], 2, "one node a machine"),
        (f"{rank} % 2", ["cluster=mpi"], 2, "equally many, consecutive ranks"),
        (f"{rank} / 3", ["cluster=mpi"], 2, "equally many, consecutive ranks"),
    ):
        code, errors = on(machine, *extra)
        assert code == want and words in errors, (machine, extra, code, errors)
    out[-1] = f"{folder}/mpi"
    code, errors = on(f"{rank} / 2", "cluster=mpi")
    assert code == 0, (code, errors)
    summary = json.loads(Path(f"{folder}/mpi/summary.json").read_text())
    assert [level["size"] for level in summary["cluster"]["levels"]] == [2, 2], summary["cluster"]


if __name__ == "__main__":
    mode, the_program, the_mpirun = sys.argv[1:4]
    number = sys.argv[4] if len(sys.argv) > 4 else 0
    if mode != "throw":
        number = int(number)
    with tempfile.TemporaryDirectory() as temporary:
        {"equal": equal, "bench": bench, "kill": kill, "refuse": refuse, "verify": verify,
         "throw": throw, "hosts": hosts}[mode](
            the_program, the_mpirun, temporary, number)
    print(f"{mode}: good")
