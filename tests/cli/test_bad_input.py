"""Bad input: the exit code and the words of each kind, and nothing half-written."""
import json
import os
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest

from dlc import DLC, GOLDEN, metrics, read_safetensors, run, write, write_safetensors

MODEL = """use std
axis batch, feature = 4, class = 3
model small(x: float[batch, feature], y: int[batch]) {
  param w[feature, class] ~ normal(0, 0.1)
  param b[class] = 0
  logits = sum[feature](x * w) + b
  loss = mean[batch](cross_entropy[class](logits, y))
  output logits
}
plan p for small {
  set batch = 8
  data x, y from arrays("data.safetensors"), hold_out = 0.25
  init "weights.safetensors"
  steps 6
  optimizer adamw(lr = 0.01, decay = 0.1 where matrix)
  seed 3
}
"""
DATA = {"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(32, 4), "y": (np.arange(32) % 3).astype(np.int32)}
WEIGHTS = {"w": np.full((4, 3), 0.1, np.float32), "b": np.zeros(3, np.float32)}

TEXT_MODEL = """use std
axis batch, time, vocab = {vocab}, embed = 8
model m(tokens, targets: int[batch, time]) {{
  param e[vocab, embed] ~ normal(0, 1)
  loss = mean[batch, time](cross_entropy[vocab](sum[embed](e[vocab = tokens] * e), targets))
}}
plan p for m {{
  set batch = 4, time = 16
  data tokens, targets from {source}
  steps {steps}
  optimizer adamw(lr = 1e-2)
  seed 1
}}
"""


@pytest.fixture
def program(tmp_path):
    write_safetensors(tmp_path / "data.safetensors", DATA)
    write_safetensors(tmp_path / "weights.safetensors", WEIGHTS)
    return write(tmp_path / "m.dl", MODEL)


def text_program(tmp_path, source='text("text.txt", tokenizer = bytes)', vocab=256, steps=10):
    write(tmp_path / "text.txt", "to be or not to be, that is the question. " * 200)
    return write(tmp_path / "t.dl", TEXT_MODEL.format(source=source, vocab=vocab, steps=steps))


def refused(path, tmp_path, *words, code=1, command="run"):
    """dlc stops with the exit code, says all the words in something that is no crash, and leaves no folder."""
    before = sorted(os.listdir(tmp_path))
    out = ["--out", tmp_path / "out"] if command == "run" else []
    err = run(command, path, *out, code=code).stderr
    assert all(w in err for w in words), err
    assert sorted(os.listdir(tmp_path)) == before
    return err


# ---- programs ----

@pytest.mark.parametrize("old, new, words", [
    ("sum[feature](x * w)", "sum[featur](x * w)", ["m.dl:6:", "featur", "did you mean 'feature'"]),
    ("logits = sum[feature](x * w) + b", "logits = x * w + b", ["m.dl:", "feature", "^"]),
    ("sum[feature](x * w)", "summ[feature](x * w)", ["m.dl:6:", "summ", "did you mean 'sum'"]),
    ("x * w", "x * ww", ["m.dl:6:", "'ww'", "did you mean 'w'"]),
    ("logits = sum[feature](x * w) + b", "logits = sum[feature](x * w + b", ["m.dl:", "error"]),
    ("param w[feature, class]", "param w[feature, feature]", ["m.dl:4:", "feature", "axis"]),
    ("adamw(lr", "adamm(lr", ["m.dl:", "adamm", "adamw"]),
    ("precision", "precision", []),
])
def test_wrong_programs(old, new, words, program, tmp_path):
    if not words:  # and what later issues build is refused by name
        path = write(tmp_path / "m.dl", MODEL.replace("  seed 3", "  seed 3\n  precision bf16"))
        refused(path, tmp_path, "bf16", "not built yet")
        return
    assert old in MODEL
    refused(write(tmp_path / "m.dl", MODEL.replace(old, new)), tmp_path, *words)
    refused(tmp_path / "m.dl", tmp_path, *words, command="check")


def test_several_errors_in_one_go(program, tmp_path):
    path = write(tmp_path / "m.dl", MODEL.replace("x * w", "x * ww").replace("logits, y", "logit, y"))
    err = run("check", path, code=1).stderr
    assert "m.dl:6:" in err and "m.dl:7:" in err and "'ww'" in err and "'logit'" in err
    path = write(tmp_path / "m.dl", MODEL.replace("x * w", "x * * w").replace("steps 6", "stepz 6"))
    err = run("check", path, code=1).stderr
    assert "m.dl:6:" in err and "m.dl:14:" in err


def test_an_empty_command_line():
    assert run(code=2).stderr
    assert run("run", code=2).stderr
    assert "--steps" in run("run", "x.dl", "--steps", "ten", code=2).stderr
    assert "--steps" in run("run", "x.dl", "--steps", code=2).stderr
    assert run("--help").stdout and run("run", "--help").stdout


def test_several_plans_are_listed(program, tmp_path):
    path = write(tmp_path / "m.dl", MODEL + MODEL[MODEL.index("plan p"):].replace("plan p", "plan q"))
    err = refused(path, tmp_path, code=2)
    assert "p" in err and "q" in err and "--plan" in err
    run("run", path, "--plan", "q", "--out", tmp_path / "out")
    assert "r" in run("run", path, "--plan", "r", "--out", tmp_path / "no", code=2).stderr
    assert not os.path.exists(tmp_path / "no")


# ---- --set ----

@pytest.mark.parametrize("path, nearest", [("optimizer.lrr=1", "lr"), ("stesp=3", "steps"), ("clas=4", "class"),
                                           ("optimiser.lr=1", "optimizer"), ("sed=4", "seed")])
def test_set_of_an_unknown_path(path, nearest, program, tmp_path):
    err = run("run", program, "--set", path, "--out", tmp_path / "out", code=2).stderr
    assert path.split("=")[0].split(".")[-1] in err and f"did you mean '{nearest}" in err, err
    assert not os.path.exists(tmp_path / "out")


@pytest.mark.parametrize("value", ["steps=0.5", "steps=-1", "batch=0", "class=", "optimizer.lr=fast", "steps=6 seed 4", "steps=6}", "steps"])
def test_set_of_a_bad_value(value, program, tmp_path):
    p = subprocess.run([DLC, "run", program, "--set", value, "--out", str(tmp_path / "out")], capture_output=True, text=True)
    assert p.returncode in (1, 2) and p.stderr, (p.returncode, p.stderr)
    assert not os.path.exists(tmp_path / "out")


# ---- data ----

def test_data_that_is_not_there(program, tmp_path):
    os.remove(tmp_path / "data.safetensors")
    refused(program, tmp_path, "data.safetensors", "No such file")
    path = text_program(tmp_path, source='text("none.txt", tokenizer = bytes)')
    refused(path, tmp_path, "none.txt")
    path = text_program(tmp_path, source='tokens("shards/*.bin")')
    refused(path, tmp_path, "shards/*.bin")


def test_data_too_short(tmp_path):
    path = text_program(tmp_path)
    for text in ("", "too short"):
        write(tmp_path / "text.txt", text)
        refused(path, tmp_path, "text.txt")


@pytest.mark.parametrize("name, data, words", [
    ("an input missing", {"x": DATA["x"]}, ["'y'"]),
    ("rows that differ", {"x": DATA["x"], "y": DATA["y"][:31]}, ["'y'", "31", "32"]),
    ("another size", {"x": DATA["x"][:, :3].copy(), "y": DATA["y"]}, ["'x'", "3"]),
    ("another rank", {"x": DATA["x"][:, 0].copy(), "y": DATA["y"]}, ["'x'"]),
    ("no rows", {"x": DATA["x"][:0], "y": DATA["y"][:0]}, ["data.safetensors"]),
    ("fractions for ids", {"x": DATA["x"], "y": DATA["y"].astype(np.float32) + 0.5}, ["'y'"]),
])
def test_data_that_does_not_fit(name, data, words, program, tmp_path):
    write_safetensors(tmp_path / "data.safetensors", data)
    refused(program, tmp_path, "data.safetensors", *words)


@pytest.mark.parametrize("bad", [3, -1, 2 ** 31 - 1])
def test_label_outside_the_classes(bad, program, tmp_path):
    labels = DATA["y"].copy()
    labels[17] = bad
    write_safetensors(tmp_path / "data.safetensors", {"x": DATA["x"], "y": labels})
    refused(program, tmp_path, "data.safetensors", "'y'", str(bad))


def test_ids_beyond_the_vocabulary(tmp_path):
    refused(text_program(tmp_path, vocab=64), tmp_path, "text.txt", "64")
    np.arange(600, dtype=np.uint16).tofile(tmp_path / "ids.bin")
    refused(text_program(tmp_path, source='tokens("ids.bin")', vocab=500), tmp_path, "ids.bin", "500")


def test_infinite_loss_is_a_failed_run(program, tmp_path):
    write_safetensors(tmp_path / "data.safetensors", {"x": np.full((32, 4), np.inf, np.float32), "y": DATA["y"]})
    err = run("run", program, "--out", tmp_path / "out", code=3).stderr
    assert "step 1" in err
    last = metrics(tmp_path / "out")[-1]
    assert last["loss"] is None and last["nonfinite"] is True


# ---- weights ----

@pytest.mark.parametrize("weights, words", [
    ({"w": WEIGHTS["w"]}, ["b"]),
    ({**WEIGHTS, "c": np.zeros(2, np.float32)}, ["c"]),
    ({**WEIGHTS, "w": np.zeros((3, 4), np.float32)}, ["w", "[3, 4]", "[4, 3]"]),
    ({"w": np.zeros((4, 3, 1), np.float32), "c": np.zeros(3, np.float32)}, ["w", "b", "c"]),
])
def test_weights_that_do_not_fit(weights, words, program, tmp_path):
    write_safetensors(tmp_path / "weights.safetensors", weights)
    refused(program, tmp_path, "weights.safetensors", *words)


def tensor_file():
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]},
                         "b": {"dtype": "F32", "shape": [3], "data_offsets": [48, 60]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 60


def test_a_tensor_file_cut_anywhere(program, tmp_path):
    whole = tensor_file()
    for n in [*range(0, 16), *range(16, len(whole) - 1, 17), len(whole) - 1]:
        with open(tmp_path / "weights.safetensors", "wb") as f:
            f.write(whole[:n])
        refused(program, tmp_path, "weights.safetensors")


@pytest.mark.parametrize("length", [0, 1, 10 ** 8 + 1, 2 ** 31, 2 ** 63, 2 ** 64 - 1, 2 ** 64 - 8])
def test_a_tensor_file_that_lies_about_its_header(length, program, tmp_path):
    with open(tmp_path / "weights.safetensors", "wb") as f:
        f.write(struct.pack("<Q", length) + tensor_file()[8:])
    refused(program, tmp_path, "weights.safetensors")


@pytest.mark.parametrize("old, new", [
    (b"[0, 48]", b"[0, 52]"), (b"[48, 60]", b"[40, 60]"), (b"[48, 60]", b"[60, 48]"), (b"[4, 3]", b"[5, 3]"),
    (b"[4, 3]", b"[4294967296, 4294967296]"), (b"[4, 3]", b"[-4, -3]"), (b'"F32", "shape": [4', b'"Q32", "shape": [4'),
    (b'"b"', b'"w"'), (b"[48, 60]", b"[48, 18446744073709551615]"), (b'{"w"', b'["w"'),
])
def test_a_tensor_file_that_lies_about_its_tensors(old, new, program, tmp_path):
    data = tensor_file()
    n = struct.unpack("<Q", data[:8])[0]
    header = data[8:8 + n].replace(old, new)
    with open(tmp_path / "weights.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data[8 + n:])
    refused(program, tmp_path, "weights.safetensors")


def test_bytes_after_the_last_tensor(program, tmp_path):
    with open(tmp_path / "weights.safetensors", "wb") as f:
        f.write(tensor_file() + b"\0" * 4)
    refused(program, tmp_path, "weights.safetensors", "4 bytes")


# ---- folders and files ----

def test_folders_that_cannot_be_written(program, tmp_path):
    write(tmp_path / "file", "a file, not a folder")
    for out in (tmp_path / "file", tmp_path / "file" / "out", "/proc/out"):
        err = run("run", program, "--out", out, code=3).stderr
        assert str(out) in err or "file" in err
    with open(tmp_path / "file") as f:
        assert f.read() == "a file, not a folder"


def test_outputs_that_cannot_be_written(program, tmp_path):
    run("run", program, "--out", tmp_path / "out")
    for args in (["grad", program, "-o", "/proc/no/g.safetensors"], ["compile", program, "-o", "/proc/no"],
                 ["apply", program, "--from", tmp_path / "out", "--data", tmp_path / "data.safetensors", "-o", "/proc/no/y.safetensors"]):
        p = subprocess.run([DLC, *map(str, args)], capture_output=True, text=True)
        assert p.returncode in (1, 3) and "/proc/no" in p.stderr, p.stderr


def test_reading_runs_that_are_not_there(program, tmp_path):
    for args in (["eval", program], ["apply", program, "--data", tmp_path / "data.safetensors", "-o", tmp_path / "y"]):
        assert "none" in run(*args, "--from", tmp_path / "none", code=1).stderr
        assert run(*args, code=2).stderr
    assert not os.path.exists(tmp_path / "y")
    run("run", program, "--out", tmp_path / "out")
    for args in (["--outputs", "logit"], ["--data", tmp_path / "m.dl"]):
        base = {"--data": tmp_path / "data.safetensors", "--outputs": "logits", args[0]: args[1]}
        words = [w for pair in base.items() for w in pair]
        assert run("apply", program, "--from", tmp_path / "out", *words, "-o", tmp_path / "y", code=1 if args[0] == "--data" else 2).stderr
    assert not os.path.exists(tmp_path / "y")


# ---- resuming and stopping ----

def test_resume_without_a_checkpoint_starts_anew(program, tmp_path):
    run("run", program, "--out", tmp_path / "a", "--resume")
    run("run", program, "--out", tmp_path / "b")
    for name in ("model", "optimizer"):
        with open(tmp_path / "a" / "latest" / f"{name}.safetensors", "rb") as a, open(tmp_path / "b" / "latest" / f"{name}.safetensors", "rb") as b:
            assert a.read() == b.read()
    run("run", program, "--out", tmp_path / "a", "--resume")
    assert [m["step"] for m in metrics(tmp_path / "a")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_stopped_and_resumed_equals_uninterrupted(sign, tmp_path):
    path = text_program(tmp_path, steps=3000)
    run("run", path, "--out", tmp_path / "whole")
    out = tmp_path / "parts"
    p = subprocess.Popen([DLC, "run", path, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    log = out / "metrics.jsonl"
    while p.poll() is None and not (log.exists() and log.stat().st_size > 0):
        time.sleep(0.005)
    p.send_signal(sign)
    err = p.communicate()[1]
    assert p.returncode == 75 and "--resume" in err, err
    done = json.loads((out / "latest" / "state.json").read_text())["step"]
    assert 0 < done < 3000
    assert not [f for f in os.listdir(out) if f.startswith(".saving")]
    run("run", path, "--out", out, "--resume")
    for name in ("model", "optimizer"):
        with open(tmp_path / "whole" / "latest" / f"{name}.safetensors", "rb") as a, open(out / "latest" / f"{name}.safetensors", "rb") as b:
            assert a.read() == b.read()
    assert [(m["step"], m["loss"]) for m in metrics(out)] == [(m["step"], m["loss"]) for m in metrics(tmp_path / "whole")]


def test_a_damaged_checkpoint_is_named(program, tmp_path):
    run("run", program, "--out", tmp_path / "out")
    path = os.path.realpath(tmp_path / "out" / "latest") + "/model.safetensors"
    with open(path, "r+b") as f:
        f.seek(-1, 2)
        last = f.read(1)
        f.seek(-1, 2)
        f.write(bytes([last[0] ^ 1]))
    err = run("eval", program, "--from", os.path.dirname(path), code=1).stderr
    assert "model.safetensors" in err and "damaged" in err


def test_the_cache_may_be_anything(program, tmp_path):
    cache = tmp_path / "cache"
    out = [tmp_path / n for n in "abc"]
    run("run", program, "--out", out[0], env={"DLC_CACHE": str(cache)})
    for d, _, files in os.walk(cache):
        for i, name in enumerate(sorted(files)):
            with open(os.path.join(d, name), "r+b") as f:
                data = bytearray(f.read())
                f.seek(0)
                f.truncate()
                f.write([b"", data[:len(data) // 2], data[:-1] + bytes([data[-1] ^ 1])][i % 3])
    run("run", program, "--out", out[1], env={"DLC_CACHE": str(cache)})
    run("run", program, "--out", out[2], env={"DLC_CACHE": "/proc/no"})
    w = [read_safetensors(o / "latest" / "model.safetensors") for o in out]
    assert all(np.array_equal(w[0][k], x[k]) for x in w for k in w[0])


def test_gpt2_ids_beyond_vocab(tmp_path):
    for name in ("gpt2.dl", "weights.safetensors"):
        shutil.copy(os.path.join(GOLDEN, "gpt2", name), tmp_path)
    data = read_safetensors(os.path.join(GOLDEN, "gpt2", "data.safetensors"))
    data["tokens"][3, 5] = 100000
    write_safetensors(tmp_path / "data.safetensors", data)
    refused(tmp_path / "gpt2.dl", tmp_path, "data.safetensors", "tokens", "100000")


def test_apply_to_ids_beyond_vocab(tmp_path):
    path = write(tmp_path / "t.dl", TEXT_MODEL.format(source='text("text.txt", tokenizer = bytes)', vocab=256, steps=2)
                 .replace("  loss = ", "  logits = sum[embed](e[vocab = tokens] * e)\n  output logits\n  loss = "))
    write(tmp_path / "text.txt", "to be or not to be, that is the question. " * 200)
    run("run", path, "--out", tmp_path / "out")
    tokens = np.zeros((3, 16), np.int32)
    tokens[2, 7] = 256
    write_safetensors(tmp_path / "x.safetensors", {"tokens": tokens})
    err = run("apply", path, "--from", tmp_path / "out", "--data", tmp_path / "x.safetensors", "-o", tmp_path / "y", code=1).stderr
    assert "'tokens'" in err and "row 2" in err and "256" in err
    assert not os.path.exists(tmp_path / "y")


def test_gradients_without_a_plan(tmp_path):
    path = write(tmp_path / "m.dl", "use std\naxis batch = 2\nmodel m(x: float[batch]) {\n  param w = 1\n  loss = mean[batch](x * w)\n}\n")
    for args in ([], ["--check"]):
        err = run("grad", path, *args, code=1).stderr
        assert "has no plan" in err and "precision" not in err


def test_words_of_a_loss_that_is_no_number(tmp_path):
    write_safetensors(tmp_path / "data.safetensors", {"x": np.full(4, 1e38, np.float32)})
    path = write(tmp_path / "m.dl", "use std\naxis batch = 2\nmodel m(x: float[batch]) {\n  param w = 1\n  loss = mean[batch]((x * w) ^ 2)\n}\n"
                 "plan p for m {\n  data x from arrays(\"data.safetensors\")\n  steps 3\n  optimizer sgd(lr = 1)\n}\n")
    err = run("run", path, "--out", tmp_path / "out", code=3).stderr
    assert "step 1" in err and "nothing was saved" in err
    assert not os.path.exists(tmp_path / "out" / "latest")


@pytest.mark.parametrize("name", ["plan", "verify", "status", "data", "import", "export"])
def test_commands_of_later_work_are_refused_by_name(name):
    err = run(name, "x", code=2).stderr
    assert f"'{name}' is not built yet" in err
