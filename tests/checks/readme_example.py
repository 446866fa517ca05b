"""The README's config is one that the program takes: readme_example.py ZEROPP ROOT."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    program, root = sys.argv[1:]
    blocks = re.findall(r"```json\n(.*?)```", (Path(root) / "README.md").read_text(), re.DOTALL)
    if not blocks:
        sys.exit("README.md: no json block")
    for block in blocks:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "readme.json"
            config.write_text(block)
            subprocess.run([program, "run", config, "steps=1", "seeds=1", "--out", folder + "/out"],
                           check=True)
