"""What a reader counts on: the licence, a README that begins with the two commands, configs that
say what question they answer, a reason for every package."""

import json
import re
from pathlib import Path

COMMENT_KEYS = ("comment", "_comment")


def problems(root):
    root = Path(root)
    return _licence(root) + _readme(root) + _configs(root) + _packages(root)


def _licence(root):
    licence = root / "LICENSE"
    if not licence.is_file():
        return ["LICENSE: missing"]
    text = licence.read_text()
    return [] if "Apache License" in text and "Version 2.0" in text else ["LICENSE: not Apache-2.0"]


def _readme(root):
    readme = root / "README.md"
    if not readme.is_file():
        return ["README.md: missing"]
    lines = re.sub(r"<!--.*?-->", "", readme.read_text(), flags=re.DOTALL).splitlines()
    top = "\n".join(lines[:60]).split("## Concepts")[0]
    wanted = ["make quickstart", "make test", "|---", "!["]
    found = [f"README.md: no '{w}' before the concepts, in the first 60 lines"
             for w in wanted if w not in top]
    for line in lines:
        for part in line.split("](")[1:]:
            target = part.split(")")[0].split("#")[0]
            if target and "://" not in target and not (root / target).exists():
                found.append(f"README.md: links to {target}, which is not there")
    return found


def _no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise ValueError(f"duplicate keys {sorted(twice)}")
    return dict(pairs)


def _configs(root):
    found = []
    for path in sorted((root / "experiments/configs").glob("*.json")):
        name = path.relative_to(root)
        try:
            config = json.loads(path.read_text(), object_pairs_hook=_no_duplicates)
        except ValueError as error:
            found.append(f"{name}: {error}")
            continue
        comments = [config.get(key) for key in COMMENT_KEYS]
        if not any(isinstance(c, str) and c.strip() for c in comments):
            found.append(f"{name}: no comment key that says what question it answers")
    return found


def _packages(root):
    found = []
    for line in (root / "cmake/packages.txt").read_text().splitlines():
        words = line.split(maxsplit=2)
        if words and not line.startswith("#") and (len(words) < 3 or
                                                   words[1] not in ("build", "check")):
            found.append(f"cmake/packages.txt: '{line}' is not package, group, why")
    return found
