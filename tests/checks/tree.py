"""The repository as the checks see it."""

import os
import re
from pathlib import Path

# Lowest first: a layer may include itself and what stands before it.
LAYERS = ["quant", "hierarchy", "zero", "experiments"]
SOURCES = {".h", ".cc", ".cu", ".cuh"}
SKIPPED = re.compile(r"^(build.*|__pycache__|\..*|runs)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def files(root, suffixes, folders=None):
    """Files of the tree with one of these suffixes, sorted, as paths relative to root."""
    found = []
    for folder in folders or ["."]:
        for at, names, files_here in os.walk(Path(root) / folder):
            names[:] = [n for n in names if not SKIPPED.match(n)]
            for name in files_here:
                if Path(name).suffix in suffixes:
                    found.append((Path(at) / name).relative_to(root))
    return sorted(set(found))


def includes(text):
    """Pairs (quoted?, header) in order."""
    return [(mark == '"', header) for mark, header in INCLUDE.findall(text)]


def layer_of(path):
    """"zero" for zero/ops/cpu/gemm.cc; "tests" for tests; None for neither."""
    top = Path(path).parts[0]
    return top if top in LAYERS or top == "tests" else None
