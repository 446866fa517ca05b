"""Every source, test and benchmark is named in a CMakeLists.txt that is itself reached."""

import re
from pathlib import Path

from tree import LAYERS, files


def problems(root):
    root = Path(root)
    found = []
    for path in files(root, {".cc", ".cu"}, LAYERS + ["tests"]):
        if _outside_project(root, path):
            continue
        if not any(_names(root / up / "CMakeLists.txt", path.relative_to(up)) for up in _ups(path)):
            found.append(f"{path}: in no CMakeLists.txt, so never built")
    for path in files(root, {".txt"}, LAYERS + ["tests"]):
        if path.name != "CMakeLists.txt" or _outside_project(root, path):
            continue
        folder = path.parent
        if not any(_names(root / up / "CMakeLists.txt", folder.relative_to(up))
                   for up in _ups(folder)):
            found.append(f"{path}: no add_subdirectory leads here")
    return found


def _ups(path):
    """The folders above a path, nearest first, down to the root (".")."""
    return list(Path(path).parents)


def _outside_project(root, path):
    """A folder whose CMakeLists.txt calls project() is built on its own (the consumer test)."""
    for up in [path, *_ups(path)]:
        lists = root / up / "CMakeLists.txt"
        if up != Path(".") and lists.is_file() and re.search(r"^project\(", lists.read_text(), re.M):
            return True
    return False


def _names(lists, relative):
    """Whether a CMakeLists.txt holds this path as a word; ${...} stands for any path part."""
    if not lists.is_file():
        return False
    code = re.sub(r"#.*", "", lists.read_text())
    for word in re.findall(r'[^\s()";]+', code):
        pattern = re.sub(r"\\\$\\\{[^}]*\}", "[^/]+", re.escape(word))
        if re.fullmatch(pattern, relative.as_posix()) and word != "${CMAKE_CURRENT_SOURCE_DIR}":
            return True
    return False
