"""Faults that people met in systems doing this job: each kind, with its right outcome."""
import math
import os
import shutil
import subprocess

import numpy as np
import pytest

from dlc import DLC, GOLDEN, metrics, read_safetensors, run, run_json, write, write_safetensors

PLAN = """
plan p for m {{
  set batch = {batch}
  data {inputs} from arrays("data.safetensors"), order = sequential
  steps {steps}
  optimizer {optimizer}
  precision {precision}
}}
"""


def program(tmp_path, body, data, optimizer="sgd(lr = 0.1)", steps=1, precision="f32", batch=None):
    batch = batch or next(iter(data.values())).shape[0]
    write_safetensors(tmp_path / "data.safetensors", data)
    text = "use std\naxis batch\n" + body + PLAN.format(batch=batch, inputs=", ".join(data), steps=steps, optimizer=optimizer,
                                                        precision=precision)
    return write(tmp_path / "m.dl", text)


def gradients(tmp_path, path):
    out = tmp_path / "g.safetensors"
    loss = run_json("grad", path, "-o", out)["loss"]
    return loss, read_safetensors(out)


def test_target_with_one_axis_fewer_is_never_stretched(tmp_path):
    path = program(tmp_path, """axis col = 3, other = 3
model m(x: float[batch, col], y: float[batch]) {
  param w = 1
  d: float[batch] = w * x - y
  loss = mean[batch](d ^ 2)
}
""", {"x": np.ones((3, 3), np.float32), "y": np.ones(3, np.float32)})
    err = run("check", path, code=1).stderr
    assert "m.dl:6" in err and "col" in err


@pytest.mark.parametrize("sizes", ["3037000500, b = 3037000500", "4611686018427387904, b = 1", "4294967296, b = 4294967296",
                                   "0, b = 4", "-1, b = 4"])
def test_sizes_that_cannot_be(sizes, tmp_path):
    path = program(tmp_path, f"""axis a = {sizes}
model m(x: float[batch]) {{
  param w[a, b] = 1
  loss = mean[batch](x) * sum[a, b](w)
}}
""", {"x": np.ones(2, np.float32)})
    err = run("check", path, code=1).stderr
    assert "m.dl:" in err


def test_branch_not_taken(tmp_path):
    path = program(tmp_path, """model m(x: float[batch]) {
  param w = 0
  param z = 0
  f = where(w < 1, w, sqrt(w))
  g = max(sqrt(z * z), 1e-10)
  loss = mean[batch](x) * (f + g)
}
""", {"x": np.ones(2, np.float32)})
    _, g = gradients(tmp_path, path)
    assert g["w"] == 1
    assert g["z"] == 0


def test_parameter_that_the_loss_never_reaches(tmp_path):
    path = program(tmp_path, """axis f = 3
model m(x: float[batch, f]) {
  param w[f] = 0.5
  param u[f] = 1
  param v[f] = 1
  side = sum[f](x * v)
  loss = mean[batch](sum[f](x * w) ^ 2)
  output side
}
""", {"x": np.ones((6, 3), np.float32)}, optimizer="adamw(lr = 0.01, decay = 0.1)", steps=3, batch=2)
    p = run("run", path, "--out", tmp_path / "out")
    assert "'u'" in p.stderr and "'v'" in p.stderr and "warning" in p.stderr
    w = read_safetensors(tmp_path / "out" / "step-000003" / "model.safetensors")
    assert np.allclose(w["u"], 0.999 ** 3, atol=1e-6), "decay acts on every parameter of its group, reached or not"
    state = read_safetensors(tmp_path / "out" / "step-000003" / "optimizer.safetensors")
    assert all(not np.any(t) for name, t in state.items() if name.split(".")[0] in "uv")


@pytest.mark.parametrize("offset", [1, 1e4, 1e6, 1e8])
def test_cross_entropy_of_a_shared_offset(offset, tmp_path):
    path = program(tmp_path, """axis class = 2
model m(x: float[batch, class], y: int[batch]) {
  param w[class] = 0
  loss = mean[batch](cross_entropy[class](x + w, y))
}
""", {"x": np.full((1, 2), offset, np.float32), "y": np.zeros(1, np.int32)})
    loss, g = gradients(tmp_path, path)
    assert abs(loss - math.log(2)) < 1e-6
    assert np.allclose(g["w"], [-0.5, 0.5], atol=1e-6)


def test_cross_entropy_of_far_logits(tmp_path):
    body = """axis class = {n}
model m(x: float[batch, class], y: int[batch]) {{
  param w[class] = 0
  loss = mean[batch](cross_entropy[class](x + w, y))
}}
"""
    path = program(tmp_path, body.format(n=2), {"x": np.array([[1e4 + 2, 1e4 - 1]], np.float32), "y": np.zeros(1, np.int32)})
    assert abs(gradients(tmp_path, path)[0] - 0.0485873516) < 1e-6
    path = program(tmp_path, body.format(n=3), {"x": np.array([[-431, 279, 427]], np.float32), "y": np.zeros(1, np.int32)})
    loss, g = gradients(tmp_path, path)
    assert abs(loss - 858) < 1e-3
    assert np.allclose(g["w"], [-1, 0, 1], atol=1e-6)


def layer_norm_rows(tmp_path, rows):
    n = rows.shape[1]
    path = program(tmp_path, f"""axis f = {n}
model m(x: float[batch, f]) {{
  param b[f] = 0.25
  y = layer_norm[f](x) + b
  loss = mean[batch, f](y * y)
  output y
}}
""", {"x": rows.astype(np.float32)})
    write_safetensors(tmp_path / "w.safetensors", {"b": np.full(n, 0.25, np.float32)})
    run("apply", path, "--from", tmp_path / "w.safetensors", "--data", tmp_path / "data.safetensors", "--outputs", "y", "-o",
        tmp_path / "y.safetensors")
    _, g = gradients(tmp_path, path)
    assert np.isfinite(g["b"]).all()
    return read_safetensors(tmp_path / "y.safetensors")["y"] - 0.25


def test_layer_norm_far_from_zero(tmp_path):
    want = np.array([-1.3416354, -0.4472118, 0.4472118, 1.3416354])
    for base in (1e4, 1e6):
        y = layer_norm_rows(tmp_path, (base + np.arange(64) % 4)[None, :])
        assert np.abs(y[0] - np.tile(want, 16)).max() < 1e-3
    for n in (5, 768):
        assert np.all(layer_norm_rows(tmp_path, np.full((1, n), 3333.3333)) == 0)
    assert np.isfinite(layer_norm_rows(tmp_path, np.full((1, 5), 1e15))).all()


@pytest.mark.parametrize("form, value, slope", [("gelu", 0.841344746, 1.083315471), ("gelu_tanh", 0.841191991, 1.082964084)])
def test_the_two_gelu_forms(form, value, slope, tmp_path):
    path = program(tmp_path, f"""model m(x: float[batch]) {{
  param w = 1
  loss = mean[batch]({form}(x * w))
}}
""", {"x": np.ones(1, np.float32)})
    loss, g = gradients(tmp_path, path)
    assert abs(loss - value) < 1e-6 and abs(g["w"] - slope) < 1e-6
    for far in (-60, 60):
        path = program(tmp_path, f"""model m(x: float[batch]) {{
  param w = 1
  loss = mean[batch]({form}(x * w))
}}
""", {"x": np.full(1, far, np.float32)})
        assert gradients(tmp_path, path)[0] == max(far, 0)


def test_adam_resumed_counts_its_steps(tmp_path):
    body = """model m(x: float[batch]) {
  param w = 1
  loss = mean[batch](w * x)
}
"""
    path = program(tmp_path, body, {"x": np.full(6, 0.5, np.float32)}, batch=1, steps=6,
                   optimizer="adamw(lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0)")
    out = tmp_path / "out"
    run("run", path, "--out", out, "--steps", 5)
    assert abs(read_safetensors(out / "step-000005" / "model.safetensors")["w"] - 0.995) < 1e-6
    run("run", path, "--out", out, "--resume")
    assert abs(read_safetensors(out / "step-000006" / "model.safetensors")["w"] - 0.994) < 1e-6


def test_tied_table_has_one_gradient_and_one_copy(tmp_path):
    path = program(tmp_path, """axis vocab = 5, embed = 2
model m(x: int[batch], y: int[batch]) {
  param table[vocab, embed] ~ normal(0, 1)
  loss = mean[batch](cross_entropy[vocab](sum[embed](table[vocab = x] * table), y))
}
""", {"x": np.array([0, 3, 4, 3], np.int32), "y": np.array([1, 2, 0, 4], np.int32)}, steps=2, batch=2, precision="f64")
    run("grad", path, "--check")
    run("run", path, "--out", tmp_path / "out")
    assert list(read_safetensors(tmp_path / "out" / "step-000002" / "model.safetensors")) == ["table"]


@pytest.mark.parametrize("old, new, words", [
    ("steps 10", "stesp 10", ["stesp", "steps"]),
    ("lr = 1e-3", "lrr = 1e-3", ["lrr", "lr"]),
    ("steps 10", "steps 10\n  steps 12", ["steps"]),
    ("steps 10", 'steps "ten"', ["steps"]),
    ("beta1 = 0.9", "beta1 = 1.0", ["beta1"]),
    ("layout accumulated { micro 1 }", "layout accumulated { micro 0 }", ["micro"]),
    ('order = sequential', 'ordre = sequential', ["ordre", "order"]),
    ("precision f32", "precision f31", ["f31"]),
])
def test_misspelt_settings_stop(old, new, words, tmp_path):
    for name in ("data.safetensors", "weights.safetensors"):
        shutil.copy(os.path.join(GOLDEN, "gpt2", name), tmp_path)
    with open(os.path.join(GOLDEN, "gpt2", "gpt2.dl")) as f:
        text = f.read()
    assert old in text
    path = write(tmp_path / "bad.dl", text.replace(old, new))
    layout = "accumulated" if "micro" in new else "one"
    err = run("run", path, "--layout", layout, "--out", tmp_path / "out", code=1).stderr
    assert "bad.dl:" in err and all(w in err for w in words), err
    assert not os.path.exists(tmp_path / "out")


def test_bad_command_lines(tmp_path):
    golden = os.path.join(GOLDEN, "gpt2", "gpt2.dl")
    assert "did you mean" in run("run", golden, "--stepz", "3", code=2).stderr
    assert "did you mean" in run("chekc", golden, code=2).stderr
    assert "batch" in run("run", golden, "--set", "bacth=3", code=2).stderr
    assert run("check", tmp_path / "none.dl", code=1).stderr
    assert run("check", tmp_path, code=1).stderr
    for name, data in (("empty", b""), ("latin", b"axis a = 3 # \xe9\n"), ("nul", b"axis a\0 = 3\n")):
        with open(tmp_path / f"{name}.dl", "wb") as f:
            f.write(data)
        assert f"{name}.dl" in run("check", tmp_path / f"{name}.dl", code=1).stderr


def test_crlf_is_text(tmp_path):
    with open(os.path.join(GOLDEN, "gpt2", "gpt2.dl")) as f:
        text = f.read()
    with open(tmp_path / "crlf.dl", "w", newline="") as f:
        f.write(text.replace("\n", "\r\n"))
    run("check", tmp_path / "crlf.dl")


def test_depth(tmp_path):
    def adds(n):
        return program(tmp_path, "model m(x: float[batch]) {\n  param w = 0\n  loss = mean[batch](x * w" + " + 1" * n + ")\n}\n",
                       {"x": np.ones(4, np.float32)})

    assert gradients(tmp_path, adds(680))[0] == 680
    assert gradients(tmp_path, adds(10000))[0] == 10000
    for text in ("(" * 5000 + "1" + ")" * 5000,):
        path = program(tmp_path, f"model m(x: float[batch]) {{\n  loss = mean[batch](x * {text})\n}}\n", {"x": np.ones(4, np.float32)})
        assert "m.dl:" in run("check", path, code=1).stderr


def test_recursion_is_a_diagnostic(tmp_path):
    path = program(tmp_path, "module a(x) {\n  use b1: b\n  return b1(x)\n}\nmodule b(x) {\n  use a1: a\n  return a1(x)\n}\n"
                   "model m(x: float[batch]) {\n  use a1: a\n  loss = mean[batch](a1(x))\n}\n", {"x": np.ones(4, np.float32)})
    err = run("check", path, code=1).stderr
    assert "'a'" in err and "'b'" in err
    write(tmp_path / "one.dl", 'use "two.dl" as two\n')
    write(tmp_path / "two.dl", 'use "one.dl" as one\n')
    err = run("check", tmp_path / "one.dl", code=1).stderr
    assert "one.dl" in err and "two.dl" in err


def test_memory_does_not_grow(tmp_path):
    write(tmp_path / "text.txt", "to be or not to be, that is the question. " * 3000)
    model = """use std
axis batch, time, vocab = 256, embed = 8
model m(tokens, targets: int[batch, time]) {
  param e[vocab, embed] ~ normal(0, 1)
  loss = mean[batch, time](cross_entropy[vocab](sum[embed](e[vocab = tokens] * e), targets))
}
plan p for m {
  set batch = 4, time = 16
  data tokens, targets from text("text.txt", tokenizer = bytes), hold_out = 0.1
  steps 400
  optimizer sgd(lr = 0.1)
  eval every 20, batches = 2
  save every 50, keep = 2
}
"""
    path = write(tmp_path / "m.dl", model)
    peak = []
    for steps in (100, 400):
        p = subprocess.Popen([DLC, "run", path, "--steps", str(steps), "--out", str(tmp_path / f"o{steps}")],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env={**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=0"})  # of the sanitized build: freed means freed
        _, status, usage = os.wait4(p.pid, 0)
        assert status == 0
        peak.append(usage.ru_maxrss)
    assert peak[1] - peak[0] < 2048, "KiB"


def big_program(tmp_path, axes, body, precision="f32"):
    return program(tmp_path, f"axis {axes}\nmodel m(x: float[batch]) {{\n{body}}}\n", {"x": np.ones(1, np.float32)}, precision=precision)


def test_offsets_beyond_32_bits(tmp_path):
    # compile only: an elementwise kernel over 2,147,516,416 elements, and slices that start beyond 2^31
    path = big_program(tmp_path, "a = 65537, b = 32768", "  param w[a, b] = 0.5\n  loss = mean[batch](x) * sum[a, b](tanh(w) * w)\n")
    program_text = run("compile", path, "--emit", "program").stdout
    assert "8590065664" in program_text.replace(",", ""), "the bytes of w"
    kernels = run("compile", path, "--emit", "kernels").stdout
    assert "i64" in kernels
    path = big_program(tmp_path, "a = 70000, b = 40000",
                       "  param w[a, b] = 0.5\n  u = w[a = 60000..60004]\n  v = w[a = 65000..65004]\n"
                       "  loss = mean[batch](x) * sum[a, b](u * exp(v))\n")
    program_text = run("compile", path, "--emit", "program").stdout
    kernels = run("compile", path, "--emit", "kernels").stdout
    offsets = (60000 * 40000, 65000 * 40000)
    assert all(str(o) in kernels or str(4 * o) in kernels or str(4 * o) in program_text for o in offsets)


def test_a_sum_of_four_billion_ones(tmp_path):
    path = big_program(tmp_path, "a = 65536, b = 65536", "  param w = 1\n  loss = mean[batch](x) * sum[a, b](full[a, b](1) * w)\n")
    assert gradients(tmp_path, path)[0] == 4294967296


def test_two_thousand_blocks(tmp_path):
    uses = "".join(f"  use b{i}: block\n  h = b{i}(h)\n" for i in range(2000))
    path = program(tmp_path, "module block(h) {\n  param w = 0\n  return h + w + 1\n}\n"
                   f"model m(x: float[batch]) {{\n  h = x\n{uses}  loss = mean[batch](h)\n}}\n", {"x": np.ones(4, np.float32)})
    assert run_json("check", path)["parameters"] == 2000
