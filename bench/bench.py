"""./dev bench: full training steps against PyTorch with its best BLAS, generated contractions against the machine's peak.

Whole processes in turn (ours, each peer, ours, ...), never two at once; medians and the ratio to the best peer. Tables go to
bench/results/MACHINE.md."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DLC = os.path.join(ROOT, "build", "dlc")
LIB = "/usr/lib/x86_64-linux-gnu"

CASES = {
    "GPT-2 124M, batch 4, time 64": dict(vocab=50257, layers=12, embed=768, heads=12, batch=4, time=64, steps=5, ctx=1024),
    "small: 4 layers, width 128, vocab 256, batch 16, time 128":
        dict(vocab=256, layers=4, embed=128, heads=4, batch=16, time=128, steps=25, ctx=128),
}
# Debian's torch takes whatever BLAS the loader finds first.
PEERS = {"PyTorch, OpenBLAS on OpenMP": f"{LIB}/openblas-openmp", "PyTorch, BLIS on OpenMP": f"{LIB}/blis-openmp"}


def cpu_name():
    with open("/proc/cpuinfo") as f:
        text = f.read()
    field = lambda key: re.search(rf"^{key}\s*:\s*(.*)$", text, re.M).group(1)
    return f"{field('model name')} family {field('cpu family')}, {os.cpu_count()} CPUs"


def torch_tokens_per_s(case, library):
    sizes = [f"--{k}={v}" for k, v in case.items() if k != "ctx"]
    env = {**os.environ, "LD_LIBRARY_PATH": library, "OMP_NUM_THREADS": "2"}
    env.pop("OPENBLAS_CORETYPE", None)
    out = subprocess.run(["/usr/bin/python3", os.path.join(HERE, "peer_torch.py"), *sizes], env=env, check=True,
                         capture_output=True, text=True)
    return float(out.stdout)


def dlc_tokens_per_s(case, data, work):
    out = os.path.join(work, "run")
    sets = dict(vocab=case["vocab"], ctx=case["ctx"], layer=case["layers"], embed=case["embed"], heads=case["heads"],
                batch=case["batch"], time=case["time"])
    args = [DLC, "run", os.path.join(ROOT, "models", "gpt2.dl"), "--fresh", "--out", out, "--steps", str(case["steps"] + 2)]
    for k, v in sets.items():
        args += ["--set", f"{k}={v}"]
    subprocess.run(args, env={**os.environ, "DATA": data, "DLC_THREADS": "2"}, check=True, capture_output=True)
    with open(os.path.join(out, "metrics.jsonl")) as f:
        ms = [json.loads(line)["step_ms"] for line in f if "step_ms" in line]
    return case["batch"] * case["time"] * 1000 / statistics.median(ms[2:])


def training(rounds, lines):
    with tempfile.TemporaryDirectory() as work:
        data = os.path.join(work, "text.txt")
        with open(data, "w") as f:
            f.write("the quick brown fox jumps over the lazy dog. " * 4000)
        for name, case in CASES.items():
            seen = {}
            for _ in range(rounds):
                seen.setdefault("dlc", []).append(dlc_tokens_per_s(case, data, work))
                for peer, library in PEERS.items():
                    if os.path.isdir(library):
                        seen.setdefault(peer, []).append(torch_tokens_per_s(case, library))
            best = max(statistics.median(v) for k, v in seen.items() if k != "dlc")
            lines += [f"## Training step, f32, 2 threads: {name}", "", "| program | tokens/s (median) | min to max | ours over it |",
                      "| --- | --- | --- | --- |"]
            ours = statistics.median(seen["dlc"])
            for k, v in seen.items():
                m = statistics.median(v)
                lines.append(f"| {k} | {m:.0f} | {min(v):.0f} to {max(v):.0f} | {ours / m:.2f} |")
            lines += ["", f"Ratio to the best peer: {ours / best:.2f}", ""]


def ours(text):
    """name -> GFLOP/s on two threads, and the peak of a hot tile on one, from the table of bench/gemm.c."""
    peak = float(re.search(r"hot tile, 1 thread: ([0-9.]+)", text).group(1))
    rows = re.findall(r"^(.+?)\s+\d+x\d+x\d+x\d+\s+[0-9.]+\s+([0-9.]+)\s", text, re.M)
    return peak, {name.strip(): float(v) for name, v in rows}


def contractions(rounds, lines):
    library = f"{LIB}/openblas-openmp/libblas.so.3"
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    env.pop("OPENBLAS_CORETYPE", None)
    mine, theirs, peaks = {}, {}, []
    for _ in range(rounds):
        text = subprocess.run([os.path.join(ROOT, "build", "bench", "bench_gemm")], check=True, capture_output=True, text=True).stdout
        peak, rows = ours(text)
        peaks.append(peak)
        for name, v in rows.items():
            mine.setdefault(name, []).append(v)
        text = subprocess.run(["/usr/bin/python3", os.path.join(HERE, "peer_blas.py"), library], check=True, capture_output=True, text=True, env=env).stdout
        for line in text.splitlines():
            name, v = line.split("\t")
            theirs.setdefault(name, []).append(float(v))
    peak = 2 * statistics.median(peaks)
    lines += ["## Generated contractions, f32, 2 threads, packing included", "", f"Peak (a tile on hot data, two threads): {peak:.0f} GFLOP/s.", "",
              "| contraction | GFLOP/s | share of peak | OpenBLAS on OpenMP | ours over it |", "| --- | --- | --- | --- | --- |"]
    shares = []
    for name, values in theirs.items():
        m, t = statistics.median(mine[name]), statistics.median(values)
        shares.append(m / peak)
        lines.append(f"| {name} | {m:.0f} | {m / peak:.2f} | {t:.0f} | {m / t:.2f} |")
    lines += ["", f"Geometric mean of the shares {statistics.geometric_mean(shares):.2f}, lowest {min(shares):.2f}.", ""]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--only", choices=["training", "contractions"])
    a = a.parse_args()
    lines = [f"# {cpu_name()}", ""]
    if a.only != "contractions":
        training(a.rounds, lines)
    if a.only != "training":
        contractions(a.rounds, lines)
    text = "\n".join(lines)
    print(text)
    os.makedirs(os.path.join(HERE, "results"), exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    with open(os.path.join(HERE, "results", name + ".md"), "w") as f:
        f.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
