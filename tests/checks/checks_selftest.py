"""Every check finds what it is for: each test breaks one rule in a small good tree."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import documents
import file_size
import layering
import orphans

GOOD = {
    "LICENSE": "Apache License\nVersion 2.0\n",
    "README.md": "make quickstart\nmake test\n|---|\n![picture](quant/codec.h)\n",
    "CMakeLists.txt": "add_subdirectory(quant)\nadd_subdirectory(zero)\nadd_subdirectory(tests)\n",
    "cmake/packages.txt": "# comment\ncmake build configures\n",
    "experiments/configs/a.json": '{"comment": "what?", "steps": 1}',
    "quant/CMakeLists.txt": "x(SOURCES codec.cc)  # orphan.cc\n",
    "quant/codec.h": "#pragma once\n#include <vector>\n",
    "quant/codec.cc": '#include "quant/codec.h"\n',
    "zero/CMakeLists.txt": "x(engine.cc ops/${backend}/gemm.cc)\n",
    "zero/engine.cc": '#include "quant/codec.h"\n#include "zero/ops/ops.h"\n',
    "zero/ops/ops.h": "#pragma once\n",
    "zero/ops/cpu/gemm.h": "#pragma once\n",
    "zero/ops/cpu/gemm.cc": '#include "zero/ops/cpu/gemm.h"\n#include <dnnl.hpp>\n',
    "tests/CMakeLists.txt": "foreach(layer quant)\nadd_subdirectory(${layer})\n",
    "tests/quant/CMakeLists.txt": "zeropp_test(quant codec_test.cc)\n",
    "tests/quant/codec_test.cc": '#include <gtest/gtest.h>\n#include "quant/codec.h"\n',
    "build/quant/ignored.cc": '#include "zero/engine.h"\n',
}


class ChecksTest(unittest.TestCase):
    def found(self, check, changes):
        """Problems that the check reports in GOOD with these files replaced (None: removed)."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in {**GOOD, **changes}.items():
                if text is not None:
                    (Path(root) / name).parent.mkdir(parents=True, exist_ok=True)
                    (Path(root) / name).write_text(text)
            with contextlib.redirect_stdout(io.StringIO()):
                return check.problems(root)

    def expect(self, check, changes, *words):
        found = self.found(check, changes)
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])

    def test_the_good_tree_is_good(self):
        for check in (layering, orphans, file_size, documents):
            self.assertEqual(self.found(check, {}), [], check.__name__)

    def test_layering(self):
        up = {"quant/codec.cc": '#include "zero/ops/ops.h"\n'}
        self.expect(layering, up, "quant/codec.cc", "higher layer zero")
        self.expect(layering, {"zero/engine.cc": '  #  include "tests/quant/codec_test.cc"\n'},
                    "in no layer")
        self.expect(layering, {"zero/engine.cc": '#include "codec.h"\n'}, "not a path")
        self.expect(layering, {"zero/engine.cc": "#include <quant/codec.h>\n"}, "angle")
        self.expect(layering, {"quant/codec.h": "#include <vector>\n"}, "pragma once")

    def test_backends_are_private(self):
        self.expect(layering, {"zero/engine.cc": '#include "zero/ops/cpu/gemm.h"\n'},
                    "private to the backend zero/ops/cpu")

    def test_third_party(self):
        self.expect(layering, {"zero/engine.cc": "#include <nlohmann/json.hpp>\n"}, "nlohmann")
        self.expect(layering, {"zero/engine.cc": "#include <nlohmann/json_fwd.hpp>\n"}, "nlohmann")
        self.expect(layering, {"quant/codec.cc": "#include <dnnl.hpp>\n"}, "dnnl")
        self.expect(layering, {"quant/codec.cc": "#include <gtest/gtest.h>\n"}, "gtest")
        self.expect(layering, {"quant/codec.cc": "#include <iostream>\n"}, "forbidden")
        self.expect(layering, {"tests/quant/codec_test.cc": "#include <format>\n"}, "forbidden")

    def test_ranks_in_tests_can_be_threads(self):
        test = "tests/zero/engine_test.cc"
        self.expect(layering, {test: "run_virtual(topology, {}, body);"}, "launch_options")
        ok = {test: "run_virtual(topology, launch_options({}), body);"}
        self.assertEqual(self.found(layering, ok), [])

    def test_orphans(self):
        self.expect(orphans, {"quant/orphan.cc": ""}, "quant/orphan.cc", "never built")
        self.expect(orphans, {"quant/cuda/codec.cu": ""}, "quant/cuda/codec.cu")
        self.expect(orphans, {"tests/quant/more_test.cc": ""}, "tests/quant/more_test.cc")
        self.expect(orphans, {"tests/quant/codec_bench.cc": ""}, "codec_bench.cc")
        self.expect(orphans, {"zero/ops/cpu/adam.cc": ""}, "adam.cc")
        self.expect(orphans, {"zero/ops/CMakeLists.txt": ""}, "no add_subdirectory")

    def test_a_project_of_its_own_is_no_orphan(self):
        outside = {"tests/checks/consumer/CMakeLists.txt": "project(c)\n",
                   "tests/checks/consumer/main.cc": ""}
        self.assertEqual(self.found(orphans, outside), [])

    def test_file_size(self):
        self.assertEqual(self.found(file_size, {"quant/codec.cc": "\n" * 450}), [])
        self.expect(file_size, {"quant/codec.cc": "\n" * 451}, "quant/codec.cc: 451 lines")
        test = "tests/quant/codec_test.cc"
        self.assertEqual(self.found(file_size, {test: "\n" * 600}), [])
        self.expect(file_size, {test: "\n" * 601}, "601 lines")

    def test_documents(self):
        config = "experiments/configs/a.json"
        self.expect(documents, {"LICENSE": None}, "LICENSE: missing")
        self.expect(documents, {"LICENSE": "MIT"}, "not Apache")
        self.expect(documents, {"README.md": None}, "README.md: missing")
        late = GOOD["README.md"].replace("make test\n", "") + "\n" * 60 + "make test\n"
        self.expect(documents, {"README.md": late}, "no 'make test' before")
        hidden = GOOD["README.md"].replace("![picture](quant/codec.h)", "<!-- ![x](y) -->")
        self.expect(documents, {"README.md": hidden}, "no '!['")
        self.expect(documents, {"README.md": GOOD["README.md"] + "[x](gone.md#part)\n"}, "gone.md")
        self.expect(documents, {config: '{"steps": 1}'}, "no comment key")
        self.expect(documents, {config: '{"comment": " "}'}, "no comment key")
        self.expect(documents, {config: '{"comment": "a", "comment": "b"}'}, "duplicate")
        self.expect(documents, {config: "{"}, config)
        self.expect(documents, {"cmake/packages.txt": "cmake build\n"}, "package, group, why")


if __name__ == "__main__":
    unittest.main()
