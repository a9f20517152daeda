"""docs/tutorial.md: its programs and commands, in order, in one folder."""
import os
import re
import shlex
import subprocess
import sys

from dlc import SOURCE, run, write


def test_every_block_of_the_tutorial_runs(tmp_path):
    with open(os.path.join(SOURCE, "docs", "tutorial.md")) as f:
        blocks = re.findall(r"^```(python|dl|sh)\n(.*?)^```$", f.read(), re.M | re.S)
    assert len(blocks) > 8
    write(tmp_path / "text.txt", "the quick brown fox jumps over the lazy dog. " * 400)
    for kind, text in blocks:
        if kind == "python":
            subprocess.run([sys.executable, "-c", text], check=True, cwd=tmp_path)
        elif kind == "dl":
            name = re.match(r"# (\w+\.dl)\n", text).group(1)
            write(tmp_path / name, text)
        else:
            for line in text.splitlines():
                words = shlex.split(line)
                assert words[0] == "dlc"
                run(*words[1:], cwd=tmp_path)
