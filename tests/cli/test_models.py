"""The models of the library: they check, their gradients are right, they learn real data, and runs repeat to the bit."""
import glob
import gzip
import json
import os
import shutil

import numpy as np
import pytest

from dlc import MODELS, metrics, read_safetensors, run, run_json, write, write_safetensors

DIGITS = glob.glob("/usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz")
TEXT = "In the beginning was the word, and the word was with the reader; and the reader said: let there be text. "
SMALL = {
    "gpt2": ["vocab=256", "ctx=32", "layer=2", "embed=16", "heads=2", "batch=2", "time=8"],
    "characters": ["layer=2", "embed=16", "heads=2", "batch=2", "time=8"],
    "llama": ["layer=2", "embed=16", "groups=1", "share=2", "head=8", "ffn=24", "batch=2", "time=8"],
    "mlp": ["batch=4"],
    "digits": ["batch=4", "feature=4", "feature_2=4"],
    "rnn": ["batch=2", "time=6", "embed=8", "hidden=8"],
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    assert DIGITS, "Debian's python3-sklearn is not installed"
    rows = np.loadtxt(gzip.open(DIGITS[0]), delimiter=",")
    path = tmp_path_factory.mktemp("digits") / "digits.safetensors"
    write_safetensors(path, {"image": (rows[:, :64].reshape(-1, 8, 8) / 16).astype(np.float32), "label": rows[:, 64].astype(np.int32)})
    return str(path)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write(tmp_path_factory.mktemp("text") / "text.txt", TEXT * 200)


def sets(pairs):
    return [w for p in pairs for w in ("--set", p)]


@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_every_model(name, digits, text):
    data = digits if name in ("mlp", "digits") else text
    path = os.path.join(MODELS, f"{name}.dl")
    run("check", path, env={"DATA": data})
    run("grad", path, "--check", *sets(SMALL[name]), env={"DATA": data})


def test_gpt2_has_its_published_size(text):
    assert run_json("check", os.path.join(MODELS, "gpt2.dl"), env={"DATA": text})["parameters"] == 124439808


@pytest.mark.parametrize("name", ["digits", "mlp"])
def test_digits_are_learnt(name, digits, tmp_path):
    path, out = os.path.join(MODELS, f"{name}.dl"), tmp_path / "run"
    env = {"DATA": digits}
    run("run", path, "--out", out, env=env)
    result = run_json("eval", path, "--from", out, env=env)
    assert result["acc"] >= (0.95 if name == "digits" else 0.9)
    run("apply", path, "--from", out, "--data", digits, "--outputs", "p", "-o", tmp_path / "p.safetensors", env=env)
    p = read_safetensors(tmp_path / "p.safetensors")["p"]
    data = read_safetensors(digits)
    assert p.shape == (len(data["label"]), 10)
    held_out = slice(len(p) - result["samples"], None)
    assert abs((p.argmax(1) == data["label"])[held_out].mean() - result["acc"]) < 1e-6


CHARACTERS = ["layer=2", "embed=32", "heads=2", "batch=8", "time=32"]


def characters(out, text, *args):
    run("run", os.path.join(MODELS, "characters.dl"), "--out", out, *sets(CHARACTERS), *args, env={"DATA": text})


def weights(out):
    with open(out / "latest" / "model.safetensors", "rb") as f:
        return f.read()


def losses(out):
    return [m["loss"] for m in metrics(out)]


def test_overrides_and_the_plan_they_leave(text, tmp_path):
    characters(tmp_path / "a", text, "--set", "optimizer.lr=3e-4", "--set", "steps=12", "--set", "batch=4")
    shutil.copy(tmp_path / "a" / "plan.dl", tmp_path / "again.dl")
    run("run", tmp_path / "again.dl", "--out", tmp_path / "b")
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert metrics(tmp_path / "a")[0]["lr"] == pytest.approx(3e-4 / 100)


def test_a_second_run_stops_and_says_both_ways_on(text, tmp_path):
    out = tmp_path / "a"
    characters(out, text, "--set", "steps=3")
    p = run("run", os.path.join(MODELS, "characters.dl"), "--out", out, *sets(CHARACTERS), env={"DATA": text}, code=2)
    assert "--resume" in p.stderr and "--fresh" in p.stderr
    characters(out, text, "--set", "steps=3", "--fresh")
    assert os.path.exists(tmp_path / "a.1")


def test_resumed_equals_uninterrupted(text, tmp_path):
    fixed = ["--set", "steps=20"]
    characters(tmp_path / "whole", text, *fixed)
    characters(tmp_path / "parts", text, *fixed, "--steps", "10")
    characters(tmp_path / "parts", text, *fixed, "--resume")
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")


def test_threads_change_nothing(text, tmp_path):
    for n in ("1", "2", "3"):
        run("run", os.path.join(MODELS, "characters.dl"), "--out", tmp_path / n, *sets(CHARACTERS), "--set", "steps=5",
            env={"DATA": text, "DLC_THREADS": n})
    assert weights(tmp_path / "1") == weights(tmp_path / "2") == weights(tmp_path / "3")


def test_changed_mathematics_needs_a_word(text, tmp_path):
    characters(tmp_path / "a", text, "--set", "steps=4")
    args = ["run", os.path.join(MODELS, "characters.dl"), "--out", tmp_path / "a", *sets(CHARACTERS), "--set", "steps=8", "--resume"]
    p = run(*args, env={"DATA": text}, code=2)
    assert "--accept-plan-change" in p.stderr and "steps" in p.stderr
    run(*args, "--accept-plan-change", env={"DATA": text})
    assert len(metrics(tmp_path / "a")) == 8


def test_attention_map_of_a_named_layer(text, tmp_path):
    characters(tmp_path / "a", text, "--set", "steps=4")
    tokens = np.frombuffer((TEXT * 2)[:96].encode(), np.uint8).astype(np.int32).reshape(3, 32)
    write_safetensors(tmp_path / "x.safetensors", {"tokens": tokens})
    run("apply", os.path.join(MODELS, "characters.dl"), "--from", tmp_path / "a", "--data", tmp_path / "x.safetensors", "--outputs", "h.1.attn.p",
        "-o", tmp_path / "y.safetensors", *sets(CHARACTERS), env={"DATA": text})
    p = read_safetensors(tmp_path / "y.safetensors")["h.1.attn.p"]
    assert sorted(p.shape) == [2, 3, 32, 32]
    assert np.allclose(p.sum(-1), 1, atol=1e-5)


def test_samples_repeat_and_files_are_there(text, tmp_path):
    out = tmp_path / "a"
    characters(out, text, "--set", "steps=4")
    args = ["sample", os.path.join(MODELS, "characters.dl"), "--from", out, "--tokens", "40", *sets(CHARACTERS), "In the"]
    a, b = (run(*args, "--seed", "3", env={"DATA": text}).stdout for _ in range(2))
    assert a == b and a.startswith("In the") and len(a) >= 40
    for name in ("plan.dl", "run.json", "log.txt", "metrics.jsonl", "report.html", "step-000004/MANIFEST", "step-000004/state.json"):
        assert os.path.getsize(out / name) > 0
    with open(out / "report.html") as f:
        page = f.read()
    assert "<svg" in page and "http" not in page.replace("http://www.w3.org", "")
    with open(out / "run.json") as f:
        json.load(f)


def test_two_compilations_are_identical(text, tmp_path):
    for name in ("a", "b"):
        run("compile", os.path.join(MODELS, "characters.dl"), "-o", tmp_path / name, *sets(CHARACTERS), env={"DATA": text, "DLC_CACHE": str(tmp_path / name / "c")})
    shutil.rmtree(tmp_path / "a" / "c"), shutil.rmtree(tmp_path / "b" / "c")
    files = sorted(os.path.relpath(os.path.join(d, f), tmp_path / "a") for d, _, fs in os.walk(tmp_path / "a") for f in fs)
    assert any(f.startswith("kernels/") for f in files) and "program.txt" in files and "memory.txt" in files
    for f in files:
        with open(tmp_path / "a" / f, "rb") as x, open(tmp_path / "b" / f, "rb") as y:
            assert x.read() == y.read(), f


def test_the_plan_a_run_leaves_is_canonical(text, tmp_path):
    characters(tmp_path / "a", text, "--set", "steps=2")
    run("fmt", tmp_path / "a" / "plan.dl", "--check")


def test_an_artifact_runs_and_is_inspected(text, tmp_path):
    run("compile", os.path.join(MODELS, "characters.dl"), "-o", tmp_path / "art", *sets(CHARACTERS), "--set", "steps=2", env={"DATA": text})
    assert "kernels" in run("inspect", tmp_path / "art").stdout
    run("run", tmp_path / "art", "--out", tmp_path / "a")
    characters(tmp_path / "b", text, "--set", "steps=2")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
