"""Files stay short: a warning over 400 lines, an error over 450."""

from pathlib import Path

from tree import SOURCES, files

WARN, LIMIT = 400, 450


def problems(root):
    found = []
    for path in files(root, SOURCES | {".py", ".cmake", ".sh"}):
        lines = (Path(root) / path).read_bytes().count(b"\n")
        if lines > LIMIT:
            found.append(f"{path}: {lines} lines, at most {LIMIT}: split it by concept")
        elif lines > WARN:
            print(f"warning: {path}: {lines} lines, the aim is {WARN}")
    return found
