"""Includes point downwards only, and third-party headers stay where they belong."""

from pathlib import Path

from tree import LAYERS, SOURCES, files, includes, layer_of

# Header prefix: the folders that may include it. nlohmann is slow to compile; the others tie a
# layer to a library that it should not know.
THIRD_PARTY = {
    "nlohmann/": ["experiments", "tests"],
    "CLI/": ["experiments", "tests"],
    "hwy/": ["quant", "zero", "tests"],
    "boost/context": ["hierarchy"],
    "boost/math": ["experiments"],
    "dnnl": ["zero", "tests"],
    "openssl/": ["zero", "tests"],
    "gtest/": ["tests"],
    "gmock/": ["tests"],
    "benchmark/": ["tests"],
    "mpi.h": ["hierarchy", "tests"],
    "nccl.h": ["hierarchy", "tests"],
    "cublas": ["zero", "tests"],
}
# A backend's headers are for its own folder (and the tests): others use the common interface.
BACKEND_FOLDERS = ["zero/ops"]
# No compiler that we support has these; libraries do not print.
FORBIDDEN = {
    "format": LAYERS + ["tests"],
    "print": LAYERS + ["tests"],
    "source_location": LAYERS + ["tests"],
    "iostream": ["quant", "hierarchy", "zero"],
}


def problems(root):
    found = []
    for path in files(root, SOURCES, LAYERS + ["tests"]):
        text = (Path(root) / path).read_text(encoding="utf-8")
        if _needs_guard(path, text) and "#pragma once" not in text:
            found.append(f"{path}: no #pragma once")
        if _escapes_tsan(path, text):
            found.append(f"{path}: run_virtual without launch_options of tests/support/spawn.h, "
                         "so TSan would meet fibers")
        for quoted, header in includes(text):
            problem = _quoted(root, path, header) if quoted else _system(path, header)
            if problem:
                found.append(f"{path}: {problem}")
    return found


def _needs_guard(path, text):
    """All headers but those that Highway includes once per instruction set."""
    repeated = "hwy/foreach_target.h" in text or "HWY_TARGET_TOGGLE" in text
    return path.suffix in {".h", ".cuh"} and not repeated


def _escapes_tsan(path, text):
    """Tests of these layers also run under TSan, which needs a thread per rank."""
    in_tsan = path.parts[:2] in (("tests", "hierarchy"), ("tests", "zero"))
    return in_tsan and "run_virtual(" in text and "launch_options(" not in text


def _quoted(root, path, header):
    layer, target = layer_of(path), layer_of(header)
    if not _exists(root, header):
        return f'"{header}" is not a path from the root of the repository'
    if layer == "tests":
        return None
    if target not in LAYERS:
        return f'includes "{header}", which is in no layer'
    if LAYERS.index(target) > LAYERS.index(layer):
        return f'{layer} includes "{header}" of the higher layer {target}'
    for folder in BACKEND_FOLDERS:
        backend = Path(header).parent
        if str(backend.parent) == folder and path.parent != backend:
            return f'includes "{header}", private to the backend {backend}'
    return None


def _exists(root, header):
    """In the tree, or made by the build: x.h from x.h.in or by a script x.cmake."""
    plain = Path(root) / header
    return any(p.is_file() for p in (plain, plain.with_suffix(".h.in"), plain.with_suffix(".cmake")))


def _system(path, header):
    layer = layer_of(path)
    if layer in FORBIDDEN.get(header, []):
        return f"<{header}> is forbidden in {layer}"
    for prefix, allowed in THIRD_PARTY.items():
        if header.startswith(prefix) and layer not in allowed:
            return f"<{header}> belongs in {', '.join(allowed)} only"
    top = header.split("/")[0]
    if top in LAYERS:
        return f"own header <{header}> in angle brackets"
    return None
