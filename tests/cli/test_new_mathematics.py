"""Mathematics the compiler was never told about, written in plain .dl: it is fused, and its gradients are right."""
import os
import shutil

import pytest

from dlc import GOLDEN, run, run_json, write

MASK = "  p = softmax[key](where(index(key) <= index(time), score, -inf))\n"
SCORES = {
    "sliding_window": "  near = index(time) - index(key) < 16\n"
                      "  p = softmax[key](where(index(key) <= index(time) and near, score, -inf))\n",
    "alibi": "  slope = 2 ^ (-8 * (index(heads) + 1) / heads)\n"
             "  p = softmax[key](where(index(key) <= index(time), score - slope * (index(time) - index(key)), -inf))\n",
    "soft_cap": "  capped = 5 * tanh(score / 5)\n"
                "  p = softmax[key](where(index(key) <= index(time), capped, -inf))\n",
    "document_mask": "  same = doc == doc[time as key]\n"
                     "  p = softmax[key](where(index(key) <= index(time) and same, score, -inf))\n",
}


def gpt2(tmp_path, score=MASK, edit=lambda text: text):
    for name in ("data.safetensors", "weights.safetensors"):
        shutil.copy(os.path.join(GOLDEN, "gpt2", name), tmp_path)
    with open(os.path.join(GOLDEN, "gpt2", "gpt2.dl")) as f:
        text = f.read()
    assert MASK in text
    text = text.replace(MASK, score)
    if "doc" in score:
        text = (text.replace("module attention(x) {", "module attention(x, doc) {")
                .replace("  repeat h over layer", "  doc = cumsum[time](where(tokens < 40, 1, 0))\n  repeat h over layer")
                .replace("attn(ln_1(x))", "attn(ln_1(x), doc)"))
    return write(tmp_path / "variant.dl", edit(text))


@pytest.mark.parametrize("name", SCORES)
def test_attention_variant_is_one_kernel(name, tmp_path):
    kernels = run_json("inspect", gpt2(tmp_path, SCORES[name]), "--layout", "one")["kernels"]
    classes = [k["class"] for k in kernels]
    assert classes.count("attention") == 1
    assert classes.count("attention_grad") == 1
    attention = kernels[classes.index("attention")]
    assert attention["launches"] == 2
    assert "variant.dl:" in attention["loc"]


@pytest.mark.parametrize("name", SCORES)
def test_attention_variant_gradients(name, tmp_path):
    run("grad", gpt2(tmp_path, SCORES[name]), "--layout", "one", "--check")


def test_user_activation(tmp_path):
    def edit(text):
        return (text.replace("module mlp(x) {", "fn bump(x) {\n  return x * exp(-x * x / 2) + 0.1 * abs(x)\n}\n\nmodule mlp(x) {")
                .replace("gelu_tanh(", "bump("))

    path = gpt2(tmp_path, edit=edit)
    run("grad", path, "--layout", "one", "--check")
    kernels = run_json("inspect", path, "--layout", "one")["kernels"]
    gemms = [k for k in kernels if k["class"] == "gemm"]
    assert any("exp" in k["fused"] for k in gemms), "the activation rides in the epilogue of its contraction"


def test_user_optimizer(tmp_path):
    def edit(text):
        code = ("optimizer signed(lr, beta = 0.9) {\n  state m = 0\n  m = beta * m + (1 - beta) * grad\n"
                "  param = param - lr * sign(m)\n}\n\n")
        lines = [code + line if line.startswith("plan ") else line for line in text.splitlines(keepends=True)]
        lines = ["  optimizer signed(lr = 1e-3)\n" if "optimizer adamw" in line else line for line in lines]
        return "".join(lines)

    out = tmp_path / "run"
    run("run", gpt2(tmp_path, edit=edit), "--layout", "one", "--out", out)


def test_gradient_penalty(tmp_path):
    def edit(text):
        return (text.replace("  x = wte[", "  x0 = wte[").replace("  repeat h", "  x = x0\n  repeat h")
                .replace("  loss = ", "  fit = ")
                .replace("  output logits", "  slope = grad(fit, x0)\n"
                         "  loss = fit + mean[batch, time](sum[embed](slope * slope))\n  output logits"))

    run("grad", gpt2(tmp_path, edit=edit), "--layout", "one", "--check")
