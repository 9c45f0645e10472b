#!/usr/bin/env python3
"""The tree passes tools/structure, and tools/structure notices each kind of problem."""

import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import unittest

TOOL = os.path.realpath(os.path.join(os.path.dirname(__file__), "structure"))
sys.path.insert(0, os.path.dirname(TOOL))
LOADER = importlib.machinery.SourceFileLoader("structure", TOOL)
structure = importlib.util.module_from_spec(importlib.util.spec_from_loader("structure", LOADER))
LOADER.exec_module(structure)

LINE = "base < codec, store < rpc\n"
RULES = {name: structure.read(structure.ROOT, name)
         for name in ("bazel/defs.bzl", "bazel/precompile.bzl", "bazel/units.bzl")}
# The first line of a BUILD file. Headers of its targets are included as "gradwire/FOLDER/FILE.h".
LOAD = 'load("//bazel:defs.bzl", "cc_library", "gradwire_cc_test", "own_proto_library")\n'


class Structure(unittest.TestCase):
    def problems(self, files, documents=(LINE, LINE)):
        """The messages of tools/structure about a tree of these files, which are given as path and text."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in [*zip(structure.DOCUMENTS, documents), *files.items()]:
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return structure.check(root)

    def test_the_tree_itself(self):
        self.assertEqual(structure.check(structure.ROOT), [])
        self.assertGreaterEqual(len(list(structure.uses(structure.ROOT, structure.graph_of(structure.ROOT)))), 1000)

    def test_dependencies_and_includes_that_point_down(self):
        self.assertEqual(self.problems({
            "rpc/BUILD.bazel": 'load("//bazel:defs.bzl", "x")\ncc_library(name = "a", deps = ["//base", "//codec/torch:b", ":c"])',
            "store/BUILD.bazel": 'cc_library(name = "a", deps = ["//base:x"], visibility = ["//rpc:__pkg__"])',
            "codec/BUILD.bazel": 'package_group(name = "users", packages = ["//rpc/..."])',
            "rpc/link/a.cc": '#include "gradwire/base/x.h"\n#include "gradwire/rpc/a.h"\n#include "google/x.h"\n',
        }), [])

    def test_a_dependency_that_points_up(self):
        self.assertEqual(self.problems({"store/BUILD.bazel": 'cc_library(\n    name = "a",\n    deps = ["//rpc/link:b"],\n)'}),
                         ["store/BUILD.bazel:1: store uses //rpc/link:b, which is not below it"])

    def test_an_include_that_points_aside(self):
        self.assertEqual(self.problems({"codec/torch/a.h": "#pragma once\n#include \"gradwire/store/x.h\"\n"}),
                         ["codec/torch/a.h:2: codec uses store, which is not below it"])

    def test_labels_and_includes_in_other_forms(self):
        rule = 'cc_library(name = "{}", deps = {})\n'
        build = (rule.format("a", '["@//rpc:b"], data = ["//:LICENSE"]') + rule.format("c", '["@gradwire//rpc"]') +
                 rule.format("d", 'select({"//rpc:on": ["//rpc:e"], "//conditions:default": []})'))
        self.assertEqual(self.problems({"store/BUILD.bazel": build, "codec/a.h": "#include <gradwire/rpc/a.h>\n"}),
                         ["codec/a.h:1: codec uses rpc, which is not below it",
                          *(f"store/BUILD.bazel:{line}: store uses //rpc:{name}, which is not below it"
                            for line, name in ((1, "b"), (2, "rpc"), (3, "e"), (3, "on")))])

    def test_dependencies_that_constants_and_macros_add(self):
        defs = ('DEPS = ["//base", "//rpc:c"]\n'
                'def library(name, layer):\n    native.cc_library(name = name, deps = ["//%s:d" % layer])\n')
        uses = 'load("{}", "DEPS", "library")\ncc_library(name = "a", deps = DEPS)\n\nlibrary(\n    "b",\n    "rpc",\n)\n'
        expected = ["store/BUILD.bazel:2: store uses //rpc:c, which is not below it",
                    "store/BUILD.bazel:4: store uses //rpc:d, which is not below it"]
        for folder in ("store", "bazel"):
            self.assertEqual(self.problems({f"{folder}/defs.bzl": defs,
                                            "store/BUILD.bazel": uses.format(f"//{folder}:defs.bzl")}), expected)
        self.assertEqual(self.problems({"rpc/defs.bzl": "", "store/BUILD.bazel": 'load("//rpc:defs.bzl")'}),
                         ["store/BUILD.bazel:1: store uses //rpc:defs.bzl, which is not below it"])
        rule = 'x = rule(attrs = {"_tool": attr.label(default = "//rpc:tool")})'
        self.assertEqual(self.problems({"store/defs.bzl": rule,
                                        "store/BUILD.bazel": 'load(":defs.bzl", "x")\nx(name = "a")\n'}),
                         ["store/BUILD.bazel:2: store uses //rpc:tool, which is not below it"])

    def test_a_folder_in_no_layer(self):
        self.assertEqual(self.problems({"new/a.h": '#include "gradwire/base/x.h"\n'}), ["new is not in any layer"])

    def test_only_tests_use_tests(self):
        rule = '{}(name = "a", deps = ["//tests/x:y"]{})'
        for call in (rule.format("cc_test", ""), rule.format("cc_library", ", testonly = True")):
            self.assertEqual(self.problems({"rpc/BUILD.bazel": call, "tests/x/y.h": ""}), [])
        self.assertEqual(self.problems({"rpc/BUILD.bazel": rule.format("cc_library", ""), "tests/x/y.h": ""}),
                         ["rpc/BUILD.bazel:1: rpc uses //tests/x:y, which is not in any layer"])

    def test_documents_that_disagree(self):
        self.assertEqual(self.problems({}, (LINE, "base < store < codec < rpc\n")),
                         ["CONTRIBUTING.md: its layers differ from those in ARCHITECTURE.md"])
        self.assertEqual(self.problems({}, (LINE, "no line\n")), ["CONTRIBUTING.md: line of layers not found"])

    def test_libraries_that_depend_on_libtorch_or_grpc_without_naming_it(self):
        build = {
            "base/BUILD.bazel": 'cc_library(name = "a", deps = ["@libtorch"])\n'
                                'cc_library(name = "b", deps = [":a"])\n'
                                'cc_library(name = "c", deps = [":a", "@libtorch//:libtorch"])\n'
                                'cc_library(name = "d", deps = ["@system//:grpc++"])\n'
                                'cc_library(name = "e", deps = [":d"])\n'
                                'cc_library(name = "f", deps = [":d", "@libtorch"])\n'
                                'cc_library(name = "g", testonly = True, deps = [":a"])\n',
        }
        self.assertEqual(self.declared(build, {}), [
            '//base:b: depends on libtorch through //base:a, but does not name it; add "@libtorch" to its deps',
            '//base:e: depends on gRPC through //base:d, but does not name it; add "@system//:grpc++" to its deps',
        ])

    def test_an_include_without_the_prefix(self):
        self.assertEqual(self.problems({"base/x.h": "", "base/a.cc": '\n#include "base/x.h"\n#include "google/x.h"\n',
                                        "third_party/b.cc": '#include "base/x.h"\n'}),
                         ["base/a.cc:2: includes base/x.h, expected gradwire/base/x.h"])

    def declared(self, build, files):
        """The messages of tools/structure about a tree with the rules of bazel/defs.bzl."""
        return self.problems({**RULES, **{path: LOAD + text for path, text in build.items()}, **files})

    def test_includes_of_headers_that_no_dependency_provides(self):
        files = {"base/x.h": "", "rpc/a.h": '#include "gradwire/base/x.h"\n', "rpc/b.cc": '#include "gradwire/rpc/a.h"\n',
                 "rpc/b_test.cc": '\n#include "gradwire/base/x.h"\n#include "gradwire/rpc/c.h"\n'}
        base = 'cc_library(name = "x", hdrs = ["x.h"])\n'
        rpc = ('cc_library(name = "a", hdrs = ["a.h"], deps = [{}])\ncc_library(name = "b", srcs = ["b.cc"], deps = [{}])\n'
               'gradwire_cc_test(name = "b_test", srcs = ["b_test.cc", "c.h"], deps = [{}])\n')
        missing = "rpc/{}: includes {}, but no dependency of //rpc:{} provides it"
        # A native cc_test has no include prefix for the header in its own `srcs`.
        own = missing.format("b_test.cc:3", "rpc/c.h", "b_test")
        for deps, expected in (
                (('"//base:x"', '":a"', '":b"'), [own]),
                (('"//base:x"', "", '"//base:x"'), [missing.format("b.cc:1", "rpc/a.h", "b"), own]),
                (("", '":a", "//base:x"', '":a"'), [missing.format("a.h:1", "base/x.h", "a"),
                                                    missing.format("b_test.cc:2", "base/x.h", "b_test"), own])):
            self.assertEqual(self.declared({"base/BUILD.bazel": base, "rpc/BUILD.bazel": rpc.format(*deps)}, files), expected)

    def test_includes_of_headers_in_sources_and_of_groups_and_aliases(self):
        build = {"base/BUILD.bazel": 'filegroup(name = "some_headers", srcs = ["x.h"])\n'
                                     'cc_library(name = "x", srcs = ["a.cc", "own.h"], hdrs = [":some_headers"])\n'
                                     'alias(name = "y", actual = ":x")\n',
                 "rpc/BUILD.bazel": 'cc_library(name = "b", srcs = glob(["*.cc"]), deps = select({"//x:on": ["//base:y"]}))\n'}
        files = {"base/x.h": "", "base/own.h": '#include "gradwire/base/x.h"\n', "rpc/b.cc": '#include "gradwire/base/x.h"\n',
                 "base/a.cc": '#include "gradwire/base/own.h"\n#include "gradwire/base/x.h"\n'}
        self.assertEqual(self.declared(build, files), [])
        files["base/own.h"] = '#include "gradwire/base/y.h"\n'
        self.assertEqual(self.declared(build, files),
                         ["base/own.h:1: includes base/y.h, but no dependency of //base:x provides it"])

    def test_private_headers_in_other_folders(self):
        build = {"base/BUILD.bazel": 'cc_library(name = "x", srcs = ["own.h"], hdrs = ["x.h"])\n',
                 "rpc/BUILD.bazel": 'cc_library(name = "a", hdrs = ["a.h"], deps = ["//base:x"])\n'}
        files = {"base/own.h": "", "base/x.h": '#include "gradwire/base/own.h"\n', "base/x_test.cc": '#include "gradwire/base/own.h"\n',
                 "rpc/a.h": '#include "gradwire/base/x.h"\n'}
        self.assertEqual(self.declared(build, files), [])
        files["rpc/a.h"] = '#include "gradwire/base/own.h"\n'
        self.assertEqual(self.declared(build, files),
                         ["rpc/a.h:1: includes base/own.h, which is in the srcs of //base:x; add it to its hdrs"])

    def test_imports_of_protocol_messages_that_no_dependency_provides(self):
        files = {"base/x.proto": "", "rpc/a.proto": 'import "gradwire/base/x.proto";\n',
                 "rpc/a.cc": '#include "gradwire/base/x.pb.h"\n'}
        rpc = ('own_proto_library(name = "a_proto", src = "a.proto", deps = [{}])\n'
               'cc_library(name = "a", srcs = ["a.cc"], deps = [":a_proto"])\n')
        base = 'own_proto_library(name = "x_proto", src = "x.proto")\n'
        self.assertEqual(self.declared({"base/BUILD.bazel": base, "rpc/BUILD.bazel": rpc.format('"//base:x_proto"')}, files), [])
        self.assertEqual(self.declared({"base/BUILD.bazel": base, "rpc/BUILD.bazel": rpc.format("")}, files),
                         ["rpc/a.pb.h:1: includes base/x.pb.h, but no dependency of //rpc:a_proto provides it",
                          "rpc/a.cc:1: includes base/x.pb.h, but no dependency of //rpc:a provides it"])

    def test_lines_that_are_too_long(self):
        line = "// " + "word " * 20 + "1234567"
        word = "x" * 120
        self.assertEqual(self.problems({"base/a.h": line + "\n", "base/b.cc": f"  // {word}\n#include <{word} >\n{word}\n"}), [])
        self.assertEqual(self.problems({"base/a.proto": f"\n{line}8\n\n{line}8\n", "base/b.inc": f"a {word}\n"}),
                         ["base/a.proto: lines over 110 columns: got 2, expected 0; the first is line 2",
                          "base/b.inc: lines over 110 columns: got 1, expected 0; the first is line 1"])

    def test_headers_of_cuda_outside_their_folders(self):
        headers = ("cuda.h", "cuda_runtime_api.h", "cuda/std/atomic", "c10/cuda/CUDAStream.h", "ATen/cuda/Sleep.h", "nccl.h",
                   "torch/cuda.h", "torch/csrc/cuda/nccl.h")
        text = "#pragma once\n" + "".join(f"  # include <{name}>\n" for name in headers)
        users = ("device/cuda/a.h", "collectives/nccl/a.cc", "tests/gpu/a.cc", "tools/bench/cuda/a.cc")
        layers = ("base < codec, store < device < collectives < rpc < tools\n",) * 2
        self.assertEqual(self.problems(dict.fromkeys(users, text), layers), [])
        for path in ("device/a.h", "collectives/nccl.cc", "rpc/link/a.inc", "tests/device/a.cc", "tools/bench/a.cc"):
            problems = self.problems({path: text}, layers)
            self.assertEqual([problem.split(", expected no header of CUDA outside device/cuda/, ")[0] for problem in problems],
                             [f"{path}:{line}: includes {name}" for line, name in enumerate(headers, 2)])
        other = '#include <ATen/ATen.h>\n#include "gradwire/device/cuda/cuda_calls.h"\n#include <cuda_like/a.h>\n// #include <cuda.h>\n'
        self.assertEqual(self.problems({"device/a.cc": other}, layers), [])

    def test_tables_that_an_exception_damages(self):
        text = '#pragma once\n#include "absl/container/flat_hash_map.h"\n'
        self.assertEqual(self.problems({"base/containers/a.h": text, "tests/a.cc": text}), [])
        self.assertEqual(self.problems({"base/io/a.h": text}), [
            "base/io/a.h:2: includes absl/container/flat_hash_map.h, whose tables are damaged by an exception; "
            "use base/containers/hash_map.h, or std::map"])

    def test_a_main_header_that_includes_too_many(self):
        names = [f"rpc/part{i % 2}/h{i}.h" for i in range(structure.MAX_HEADERS + 1)]
        for count, expected in ((len(names) - 1, []), (len(names), [
                f"rpc/rpc.h: includes {len(names)} headers of this tree, directly or not, expected at most "
                f"{structure.MAX_HEADERS}; declare types instead, or move what needs them to source files"])):
            includes = "".join(f'#include "gradwire/{name}"\n' for name in names[:count])
            self.assertEqual(self.problems({**dict.fromkeys(names, ""), "rpc/rpc.h": includes}), expected)

    def test_folders_that_include_each_other(self):
        def include(name):
            return f'#include "gradwire/{name}"\n'
        line = ("base < codec < rpc < tools\n",) * 2
        files = {"rpc/a.h": include("rpc/link/b.h"), "rpc/link/b.h": include("rpc/core/c.h"), "rpc/core/c.h": "",
                 "rpc/link/x_test.cc": "", "rpc/BUILD.bazel": ""}
        self.assertEqual(self.problems(files, line), [])
        # A folder and its subfolder, and a cycle of three.
        files["rpc/link/d.cc"] = "\n" + include("rpc/a.h")
        two = ("rpc, rpc/link: include each other; move what both need to a folder below them: "
               "rpc/a.h:1 includes rpc/link/b.h; rpc/link/d.cc:2 includes rpc/a.h")
        self.assertEqual(self.problems(files, line), [two])
        files.update({"rpc/link/d.cc": "", "rpc/core/c.h": include("rpc/a.h")})
        three = ("rpc, rpc/core, rpc/link: include each other; move what both need to a folder below them: "
                 "rpc/a.h:1 includes rpc/link/b.h; rpc/core/c.h:1 includes rpc/a.h; "
                 "rpc/link/b.h:1 includes rpc/core/c.h")
        self.assertEqual(self.problems(files, line), [three])

    def test_files_of_tests_may_include_what_is_above(self):
        build = LOAD + ('gradwire_cc_test(name = "t", srcs = ["t_test.cc"])\n'
                        'cc_library(name = "s", testonly = True, hdrs = ["s.h"])\n')
        text = '#include "gradwire/rpc/a.h"\n'
        files = {"rpc/link/BUILD.bazel": build, "rpc/link/t_test.cc": text, "rpc/link/s.h": text, "rpc/link/b.h": "",
                 "rpc/a.h": '#include "gradwire/rpc/link/b.h"\n'}
        problems = self.problems({**RULES, **files})
        self.assertEqual([each for each in problems if "include each other" in each], [])

    def test_headers_behind_a_header(self):
        with tempfile.TemporaryDirectory() as root:
            for name, text in (("a.h", '#include "gradwire/b.h"\n#include <c>\n'),
                               ("b.h", '#include "gradwire/a.h"\n#include "gradwire/c.h"\n'),
                               ("c.h", "")):
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            self.assertEqual(structure.headers_behind(root, "a.h"), {"b.h", "c.h"})


if __name__ == "__main__":
    unittest.main()
