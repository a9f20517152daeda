"""What the tests of the command line share: running the program, reading safetensors without a library."""
import json
import os
import struct
import subprocess

import numpy as np

SOURCE = os.environ.get("DLC_SOURCE", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
DLC = os.environ.get("DLC", os.path.join(SOURCE, "build", "dlc"))
GOLDEN = os.path.join(SOURCE, "tests", "golden")
MODELS = os.path.join(SOURCE, "models")

DTYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "BOOL": np.uint8}


def run(*args, code=0, env=None, cwd=None, text_input=None, timeout=600):
    """Runs dlc; fails the test when the exit code is another one. Returns the completed process."""
    p = subprocess.run([DLC, *map(str, args)], capture_output=True, text=True, cwd=cwd, input=text_input,
                       env={**os.environ, **(env or {})}, timeout=timeout)
    assert p.returncode == code, f"dlc {' '.join(map(str, args))}: exit {p.returncode}, not {code}\n{p.stdout}\n{p.stderr}"
    return p


def run_json(*args, **kw):
    return json.loads(run(*args, "--json", **kw).stdout)


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    base = data[8 + n:]
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        lo, hi = t["data_offsets"]
        out[name] = np.frombuffer(base[lo:hi], dtype=DTYPES[t["dtype"]]).reshape(t["shape"]).copy()
    return out


def write_safetensors(path, tensors):
    names = {np.dtype(v): k for k, v in DTYPES.items() if k != "BOOL"}
    header, offset, blobs = {}, 0, []
    for name, t in tensors.items():
        t = np.ascontiguousarray(t)
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
        blobs.append(t.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def metrics(out):
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def write(path, text):
    with open(path, "w") as f:
        f.write(text)
    return str(path)
