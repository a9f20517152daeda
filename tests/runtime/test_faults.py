"""Runs that are killed, stopped, damaged, locked or out of room: nothing lost, clear words, resumed to the same bits."""
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest

from dlc import DLC, MODELS, metrics, run

MODEL = os.path.join(MODELS, "characters.dl")


def settings(steps):
    return [f"--set={s}" for s in ("embed=32", "layer=2", "heads=2", "time=32", "batch=4", f"steps={steps}", "save.every=3",
                                   "eval.every=100", "eval.batches=2", "sample.every=1000000")]


SMALL, LONG = settings(120), settings(100000)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "input.txt"
    words = "the quick brown fox jumps over a lazy dog and then some more of it".split()
    rng = random.Random(1)
    path.write_text(" ".join(rng.choice(words) for _ in range(8000)))
    os.environ["DATA"] = str(path)
    return path


def weights(folder):
    with open(os.path.join(folder, "latest", "model.safetensors"), "rb") as model, \
            open(os.path.join(folder, "latest", "optimizer.safetensors"), "rb") as optimizer:
        return model.read() + optimizer.read()


def start(out, plan):
    return subprocess.Popen([DLC, "run", MODEL, *plan, "--out", str(out), "--resume"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    run("run", MODEL, *SMALL, "--out", out)
    return out


def test_killed_again_and_again_ends_at_the_same_bits(whole, tmp_path):
    out = tmp_path / "run"
    rng = random.Random(7)
    for _ in range(8):
        p = start(out, SMALL)
        time.sleep(0.02 + 0.2 * rng.random())
        p.kill()
        p.communicate()
    run("run", MODEL, *SMALL, "--out", out, "--resume")
    assert weights(out) == weights(whole)
    rows = metrics(out)
    assert [r["step"] for r in rows] == list(range(1, 121))
    assert [r["loss"] for r in rows] == [r["loss"] for r in metrics(whole)]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_stopped_on_request(sign, text, tmp_path):
    out = tmp_path / "run"
    p = start(out, LONG)
    while not (out / "metrics.jsonl").exists() and p.poll() is None:
        time.sleep(0.01)
    p.send_signal(sign)
    _, said = p.communicate()
    assert p.returncode == 75 and "--resume" in said
    assert (out / "latest" / "MANIFEST").exists()


def test_damaged_checkpoint_falls_back(whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole, out, symlinks=True)
    newest = os.path.realpath(out / "latest")
    with open(os.path.join(newest, "optimizer.safetensors"), "r+b") as f:
        f.seek(5000)
        f.write(b"\x55\xaa\x55")
    said = run("run", MODEL, *SMALL, "--out", out, "--resume").stderr
    assert "optimizer.safetensors" in said and "damaged" in said
    assert weights(out) == weights(whole)


def test_two_runs_in_one_folder(text, tmp_path):
    out = tmp_path / "run"
    p = start(out, LONG)
    while not (out / "metrics.jsonl").exists() and p.poll() is None:
        time.sleep(0.01)
    os.kill(p.pid, signal.SIGSTOP)
    try:
        said = run("run", MODEL, *LONG, "--out", out, "--resume", code=2).stderr
        assert str(p.pid) in said
    finally:
        os.kill(p.pid, signal.SIGCONT)
        p.kill()
        p.communicate()


def test_no_room_for_a_checkpoint(text, tmp_path):
    out = tmp_path / "run"

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    run("run", MODEL, *SMALL, "--out", out, "--steps", 3)  # compiles, so that the kernel cache needs no room below
    before = weights(out)
    p = subprocess.run([DLC, "run", MODEL, *SMALL, "--out", str(out), "--resume"], capture_output=True, text=True,
                       preexec_fn=small_files)
    assert p.returncode == 3, p.stderr
    assert "File too large" in p.stderr and "model.safetensors" in p.stderr
    assert weights(out) == before and not (out / ".saving").exists()
