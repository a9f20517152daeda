"""Both reference models against PyTorch in f64: loss of every step, gradient norms, gradients of the first batch."""
import json
import os

import numpy as np
import pytest

from dlc import GOLDEN, metrics, read_safetensors, run

CASES = ["gpt2", "llama"]
# precision: (loss, gradient norm, gradient), relative
LIMITS = {"f32": (3e-6, 2e-5, 2e-5), "f64": (1e-9, 1e-9, 1e-9)}


def program(case):
    return os.path.join(GOLDEN, case, f"{case}.dl")


def expected(case):
    with open(os.path.join(GOLDEN, case, "expected.json")) as f:
        return json.load(f)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", LIMITS)
def test_run_follows_the_reference(case, precision, tmp_path):
    out = tmp_path / "run"
    run("run", program(case), "--layout", "one", "--set", f"precision={precision}", "--out", out)
    loss_limit, norm_limit, _ = LIMITS[precision]
    lines = [m for m in metrics(out) if "loss" in m]
    steps = expected(case)["steps"]
    assert len(lines) == len(steps)
    for got, want in zip(lines, steps):
        assert got["step"] == want["step"]
        assert abs(got["loss"] - want["loss"]) <= loss_limit * abs(want["loss"])
        assert abs(got["grad_norm"] - want["grad_norm"]) <= norm_limit * want["grad_norm"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", LIMITS)
def test_gradients_of_the_first_batch(case, precision, tmp_path):
    out = tmp_path / "grads.safetensors"
    run("grad", program(case), "--layout", "one", "--set", f"precision={precision}", "-o", out)
    got, want = read_safetensors(out), read_safetensors(os.path.join(GOLDEN, case, "grads.safetensors"))
    assert sorted(got) == sorted(want)
    largest = max(np.abs(g).max() for g in want.values())
    limit = LIMITS[precision][2]
    for name, w in want.items():
        assert got[name].shape == w.shape
        scale = max(np.abs(w).max(), 1e-3 * largest)
        assert np.abs(got[name] - w).max() <= limit * scale, name


@pytest.mark.parametrize("case", CASES)
def test_gradients_against_differences(case):
    run("grad", program(case), "--layout", "one", "--check")
