"""Files stay short: a warning over 400 lines, an error over 450 (600 for tests)."""

from pathlib import Path

from tree import SOURCES, files

WARN, LIMIT, TEST_LIMIT = 400, 450, 600


def problems(root):
    found = []
    for path in files(root, SOURCES | {".py", ".cmake", ".sh"}):
        lines = (Path(root) / path).read_bytes().count(b"\n")
        limit = TEST_LIMIT if path.parts[0] == "tests" else LIMIT
        if lines > limit:
            found.append(f"{path}: {lines} lines, at most {limit}: split it by concept")
        elif lines > WARN:
            print(f"warning: {path}: {lines} lines, the aim is {WARN}")
    return found
