"""Runs one repository check: check.py layering|orphans|file_size|documents ROOT."""

import importlib
import sys

if __name__ == "__main__":
    name, root = sys.argv[1:]
    found = importlib.import_module(name).problems(root)
    for problem in found:
        print(problem)
    print(f"{name}: {len(found)} problems")
    sys.exit(1 if found else 0)
