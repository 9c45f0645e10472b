"""Translation units of several source files.

The fixed cost of a compilation is larger than the cost of most source files. So most builds, also those of other
workspaces, compile the sources of a folder's libraries together, in a generated file that includes them, and link them as
one library, the folder's unit:

- //FOLDER:unit        the libraries without libtorch and gRPC
- //FOLDER:grpc_unit   those that depend on gRPC, directly or not
- //FOLDER:torch_unit  those that depend on libtorch, directly or not

In these builds a library has no files of its own, and depends only on its unit. So its dependents see all headers of the
unit. The others compile each file of a library alone, with the headers that its target declares:

- --define=gradwire_units=tests   for developers: only the sources of tests are compiled together, a few at a time, and
                                  those of benchmarks
- --define=gradwire_units=none    all files alone

A folder has a unit if its BUILD file ends with unit(). These libraries are not in it: with `testonly`, options of their
own, tags, or a select() in `srcs` or `deps`, and those in _APART. If they, a test or a program have several sources, those
are compiled together, too (joined()).
"""

load(":precompile.bzl", "precompile")

# The prefix of Gradwire's headers in includes: a user's workspace may have folders of the same names.
INCLUDE_PREFIX = "gradwire"

_NO_UNITS = "//bazel:no_units"
_UNITS_OF_TESTS = "//bazel:units_of_tests"

# So many sources of a test are compiled together in the builds with units of tests alone. A developer who changes one of
# them waits for all.
_SOURCES_OF_TESTS = 8

# Folders with units also in the builds with units of tests alone, with those below them: no product contains their code.
_BENCHMARKS = "tools/bench"

# Libraries that are in no unit of a folder.
_APART = [
    # The names under which programs include what is in folders above.
    "//base:base",
    "//collectives:collectives",
    "//data_parallel:data_parallel",
    "//rpc:mesh",
    "//rpc:rpc",
    "//store:store",
    # The simulators of references and of rendezvous link copies of other files of these units.
    "//rpc/limits:worker_counts",
    "//rpc/core",
    "//rpc/core",
    "//tools/launch/rendezvous:types",
    # Few programs need it, and it registers a hundred classes in each program that links it.
    "//rpc:stock_modules",
]

# The kinds of units, each with the prefix of its targets.
_KINDS = {"standard": "", "grpc": "grpc_", "torch": "torch_"}

def uses_libtorch(deps):
    # A label of a repository's main target has no "//".
    return type(deps) == "list" and [each for each in deps if (each + "//").startswith("@libtorch//")] != []

def _kind_of(deps):
    if uses_libtorch(deps):
        return "torch"
    return "grpc" if "@system//:grpc++" in deps else "standard"

def in_unit(name, srcs, deps, kwargs):
    """Whether a library with these attributes is in its folder's unit."""
    if "//%s:%s" % (native.package_name(), name) in _APART or type(srcs) != "list" or type(deps) != "list":
        return False
    own = ["copts", "data", "linkstatic", "local_defines", "tags", "testonly", "textual_hdrs"]
    return [each for each in own if kwargs.get(each)] == []

def _nothing(_):
    return []

# The parts of a library of a unit. Its attributes are not labels: it depends on nothing, and unit() reads them.
_member = rule(
    implementation = _nothing,
    attrs = {
        "alwayslink": attr.bool(),
        "headers": attr.string_list(),
        "links": attr.string(),
        "needs": attr.string_list(),
        "sources": attr.string_list(),
    },
)

def add_to_unit(name, srcs, hdrs, deps, alwayslink):
    """Makes a library a part of its folder's unit.

    Args:
      name: the library's name.
      srcs: its sources, without headers.
      hdrs: its headers, with those that only it includes.
      deps: its dependencies.
      alwayslink: as in cc_library.

    Returns:
      the label of the unit.
    """
    kind = _kind_of(deps)
    _member(
        name = name + ".member",
        alwayslink = alwayslink,
        headers = hdrs,
        links = kind,
        needs = deps,
        sources = srcs,
        tags = ["manual"],
    )
    return "//%s:%sunit" % (native.package_name(), _KINDS[kind])

def with_units(other, units, tests = None):
    """The value of an attribute that differs in builds with units.

    Args:
      other: the value in builds without units.
      units: the value in builds with units.
      tests: the value in those with units of tests alone, if it is not `other`, or `units` in the folders of benchmarks.

    Returns:
      the value in each build.
    """
    if tests == None:
        tests = units if (native.package_name() + "/").startswith(_BENCHMARKS + "/") else other
    return select({
        _NO_UNITS: other,
        _UNITS_OF_TESTS: tests,
        "//conditions:default": units,
    })

def _including_file_impl(ctx):
    sources = [each for each in ctx.files.srcs if each.extension == "cc"]
    ctx.actions.write(ctx.outputs.out, "".join(["#include \"%s\"\n" % _path_of(each) for each in sources]))
    return [DefaultInfo(files = depset([ctx.outputs.out]))]

def _path_of(file):
    # Relative to the root of its repository: "../NAME/" precedes the paths of another one.
    path = file.short_path
    return path.split("/", 2)[2] if path.startswith("../") else path

# A source file that includes others.
_including_file = rule(
    implementation = _including_file_impl,
    attrs = {
        "out": attr.output(mandatory = True),
        "srcs": attr.label_list(allow_files = True),
    },
)

def joined(name, srcs, testonly):
    """Compiles the sources of a target that is in no unit of a folder together, in builds with units.

    Args:
      name: the target's name.
      srcs: its sources, without headers.
      testonly: as in cc_library.

    Returns:
      its `srcs` for all builds, and further dependencies.
    """
    unit = _included(name, srcs, testonly)
    native.cc_library(
        name = name + ".included",
        textual_hdrs = srcs,
        testonly = testonly,
        tags = ["manual"],
    )
    included = [":%s.included" % name]
    if not testonly:
        return with_units(srcs, unit), with_units([], included)
    parts = [srcs[i:i + _SOURCES_OF_TESTS] for i in range(0, len(srcs), _SOURCES_OF_TESTS)]
    files = unit if len(parts) == 1 else [
        _included("%s.%d" % (name, i), part, testonly)[0]
        for i, part in enumerate(parts)
    ]
    return with_units(srcs, unit, files), with_units([], included, included)

def _included(name, srcs, testonly):
    # The generated file that includes these sources.
    out = name + ".unit.cc"
    _including_file(
        name = name + ".unit",
        srcs = srcs,
        out = out,
        testonly = testonly,
        tags = ["manual"],
    )
    return [out]

def _outside(labels, kind, kinds, aliases):
    """The labels without those of the same unit.

    Args:
      labels: dependencies of libraries of this folder.
      kind: the kind of the unit.
      kinds: the kinds of the members of this folder, by name.
      aliases: the labels that the aliases of this folder stand for, by name.
    """
    own = "//" + native.package_name()
    outside = []
    for label in labels:
        if label.startswith(":"):
            label = aliases.get(label[1:], label)
        path, _, name = label.partition(":")
        if (path != own and path) or kinds.get(name or path.rpartition("/")[2]) != kind:
            outside.append(label)
    return outside

def unit():
    """Declares the units of a folder. It is the last call of the BUILD file."""
    rules = native.existing_rules().values()
    members = [each for each in rules if each["kind"] == "_member"]

    # In another workspace the labels of this one have the name of its repository.
    aliases = {
        each["name"]: each["actual"].replace(native.repository_name() + "//", "//")
        for each in rules
        if each["kind"] == "alias"
    }
    kinds = {each["name"][:-len(".member")]: each["links"] for each in members}
    for kind, prefix in _KINDS.items():
        parts = [each for each in members if each["links"] == kind]
        if not parts:
            continue
        sources = [label for each in parts for label in each["sources"]]
        needs = {label: None for each in parts for label in each["needs"]}
        name = prefix + "unit"
        _including_file(
            name = name + ".source",
            srcs = sources,
            out = name + ".cc",
            tags = ["manual"],
        )
        native.cc_library(name = name + ".included", textual_hdrs = sources, tags = ["manual"])
        native.cc_library(
            name = name + ".headers",
            hdrs = {label: None for each in parts for label in each["headers"]}.keys(),
            include_prefix = INCLUDE_PREFIX,
            strip_include_prefix = "/",
            deps = _outside(needs, kind, kinds, aliases) + [":%s.included" % name],
            tags = ["manual"],
        )
        attributes = {}
        precompile("torch" if kind == "torch" else "standard", attributes)
        native.cc_library(
            name = name,
            srcs = [name + ".cc"],
            # A registrar must remain in a static link.
            alwayslink = any([each["alwayslink"] for each in parts]),
            copts = attributes["copts"],
            deps = [":%s.headers" % name] + attributes["deps"],
            tags = ["manual"],
            visibility = ["//visibility:public"],
        )
