"""Rules for code with registrations for Gradwire, and for Gradwire's own tests and protocol messages."""

# The prefix of Gradwire's headers in includes: a user's workspace may have folders of the same names.
_INCLUDE_PREFIX = "gradwire"

# The folders that .bazelrc compiles with optimisation under the sanitizers.
_OPTIMISED_FOLDERS = ("autograd/pass", "collectives/cpu", "tests/fuzz", "transport")

# Options of the compiler for a target that every configuration optimises. No others have a precompiled header.
OPTIMISED = [
    "-O2",
    "-DNDEBUG",
]

def _precompiled(name, kwargs):
    """Adds a precompiled header to the attributes of a C++ rule, in the builds that use them.

    A target with options of its own gets none: clang refuses a precompiled header that other options were used for.

    Args:
      name: the header: a target in //bazel/pch.
      kwargs: the attributes, which are changed.
    """
    copts = kwargs.get("copts", [])
    if copts == OPTIMISED and name == "standard":
        name = "standard_optimised"
        sanitizer = name
    elif copts:
        return
    else:
        folder = native.package_name()
        optimised = [each for each in _OPTIMISED_FOLDERS if folder == each or folder.startswith(each + "/")]
        sanitizer = name
        if optimised:  # The tests of the sanitizers use nothing with libtorch.
            sanitizer = "" if name.startswith("torch") else name + "_sanitizer"
    kwargs["copts"] = copts + select({
        "//bazel:pch": _flags(name),
        "//bazel:pch_unoptimised": _flags(sanitizer) if sanitizer else [],
        "//conditions:default": [],
    })
    kwargs["deps"] = kwargs.get("deps", []) + select({
        "//bazel:pch": ["//bazel/pch:" + name],
        "//bazel:pch_unoptimised": ["//bazel/pch:" + sanitizer] if sanitizer else [],
        "//conditions:default": [],
    })

def _flags(name):
    # -MMD: without it clang lists all precompiled headers as inputs, by paths that Bazel does not know.
    return ["-include-pch", "$(BINDIR)/bazel/pch/%s.pch" % name, "-MMD", "-Wno-unused-command-line-argument"]

def _uses_libtorch(deps):
    # A label of a repository's main target has no "//".
    return type(deps) == "list" and [each for each in deps if (each + "//").startswith("@libtorch//")] != []

def gradwire_cc_library(**kwargs):
    """A cc_library whose static registrars (GRADWIRE_RPC and similar macros) remain in a static link.

    Without alwayslink the linker drops an object file to which no other one refers, with the functions it registers.
    """
    kwargs["alwayslink"] = True
    native.cc_library(**kwargs)

def cc_library(name, srcs = [], hdrs = [], deps = [], **kwargs):
    """A cc_library of Gradwire, whose headers are included as "gradwire/FOLDER/FILE.h".

    Bazel adds the prefix only to the headers in `hdrs`. The headers in `srcs`, which only the library itself includes,
    are in another target, NAME.own_headers.

    Args:
      name: the target's name.
      srcs: as in cc_library. A label that ends in ".h" or ".inc", or a filegroup named "..._headers", is a header.
      hdrs: as in cc_library.
      deps: as in cc_library.
      **kwargs: as in cc_library.
    """
    sources, own = srcs, []
    if type(srcs) == "list":
        own = [each for each in srcs if each.endswith((".h", ".inc", "_headers"))]
        sources = [each for each in srcs if each not in own]
    if own:
        native.cc_library(
            name = name + ".own_headers",
            hdrs = own,
            include_prefix = _INCLUDE_PREFIX,
            strip_include_prefix = "/",
            testonly = kwargs.get("testonly", False),
            visibility = ["//visibility:private"],
        )
        deps = deps + [":" + name + ".own_headers"]
    if hdrs:
        kwargs["include_prefix"] = _INCLUDE_PREFIX
        kwargs["strip_include_prefix"] = "/"
    kwargs["deps"] = deps
    if sources:
        _precompiled("torch" if _uses_libtorch(deps) else "standard", kwargs)
    native.cc_library(name = name, srcs = sources, hdrs = hdrs, **kwargs)

def cc_binary(name, deps = [], **kwargs):
    """A cc_binary of Gradwire.

    Args:
      name: the target's name.
      deps: as in cc_binary.
      **kwargs: as in cc_binary.
    """
    kwargs["deps"] = deps
    if "srcs" in kwargs:
        _precompiled("torch_modules" if _uses_libtorch(deps) else "standard", kwargs)
    native.cc_binary(name = name, **kwargs)

def gradwire_cc_test(
        name,
        deps = [],
        torch = False,
        grpc = False,
        threads = True,
        plain = False,
        sanitizers = True,
        concurrent = False,
        tags = [],
        env = {},
        **kwargs):
    """A GoogleTest test.

    tools/test runs each test in the configuration that finds the most: a test with libtorch without sanitizers, and a
    test without libtorch under ASan and UBSan, and under TSan too if it starts threads.

    Args:
      name: the target's name.
      deps: as in cc_test.
      torch: the test links libtorch, which is not instrumented. The sanitizer runs leave it out.
      grpc: the test links Debian's gRPC, whose own synchronisation ThreadSanitizer cannot see, and some of whose threads
        may end after main().
      threads: False for a test that starts no thread. The TSan run leaves it out. The linked
        //base/testing:no_threads ends the test if it starts a thread.
      plain: True for a test without libtorch that must also run without sanitizers: it is much shorter under them, or
        finds mistakes that occur only at full speed.
      sanitizers: False for a test of a feature that sanitizers replace, for example crash handlers. It runs only
        without them.
      concurrent: True for a test most of whose cases wait for a timeout or for another process. Its cases run at the
        same time, each in a process and with a TEST_TMPDIR of its own (//base/testing:concurrent_cases). The cases must
        not share anything by name, for example a port.
      tags: as in cc_test.
      env: as in cc_test.
      **kwargs: as in cc_test.
    """
    size = kwargs.setdefault("size", "small")

    # One class above the default of the size: the machine may be shared, and may be ten times slower for a while.
    kwargs.setdefault("timeout", {"small": "moderate", "medium": "long"}.get(size, "eternal"))
    tags = list(tags)
    if torch:
        tags.append("torch")
    elif not sanitizers:
        tags.append("no-sanitizer")
    elif not plain:
        tags.append("sanitized")
    main = "//base/testing:concurrent_cases" if concurrent else "@system//:gtest_main"
    deps = deps + ["//base/testing:tsan_suppressions", main]
    if not threads:
        tags.append("no-tsan")
        deps.append("//base/testing:no_threads")
    kwargs["deps"] = deps
    _precompiled("torch_tests" if torch else "tests", kwargs)
    native.cc_test(
        name = name,
        tags = tags,
        env = dict(
            env,
            TSAN_OPTIONS = "halt_on_error=1 second_deadlock_stack=1" + (" ignore_noninstrumented_modules=1 report_thread_leaks=0" if grpc else ""),
        ),
        **kwargs
    )

def gradwire_proto_library(name, src, deps = [], grpc = False, include_prefix = "", copts = [], **kwargs):
    """Generates and compiles the C++ code of one .proto file.

    The file is imported, and its header included, as "FOLDER/FILE" with the folder's path in its workspace. protoc
    registers the file under this name, which must differ from the names of a program's other files.

    Args:
      name: the target's name.
      src: the .proto file.
      deps: targets of this rule whose files it imports.
      grpc: whether it has services for gRPC.
      include_prefix: a folder before the path. Gradwire's own files are in "gradwire".
      copts: as in cc_library, for the generated code.
      **kwargs: as in cc_library.
    """
    stem = src[:-len(".proto")]
    hdrs = [stem + ".pb.h"]
    srcs = [stem + ".pb.cc"]
    generated = "$(RULEDIR)/%s.protoc" % name
    flags = "--cpp_out=" + generated
    tools = ["@system//:protoc"]
    if grpc:
        hdrs.append(stem + ".grpc.pb.h")
        srcs.append(stem + ".grpc.pb.cc")
        flags += " --grpc_out=%s --plugin=protoc-gen-grpc=$(execpath @system//:grpc_cpp_plugin)" % generated
        tools.append("@system//:grpc_cpp_plugin")
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    folder = "/".join([part for part in [generated, include_prefix, native.package_name()] if part])
    native.filegroup(
        name = name + "_src",
        srcs = [src],
        data = [d + "_src" for d in deps],
        # Files of other packages may import this one.
        visibility = kwargs.get("visibility"),
    )
    native.genrule(
        name = name + "_gen",
        srcs = [src] + [d + "_src" for d in deps],
        outs = hdrs + srcs,
        cmd = " && ".join([
            "mkdir " + generated,
            "$(execpath @system//:protoc) -I%s=%s %s $(location %s)" % (include_prefix, root, flags, src),
            "mv %s/* $(RULEDIR)" % folder,
            "rm -r " + generated,
        ]),
        tools = tools,
    )
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        include_prefix = include_prefix,
        strip_include_prefix = "/",
        # The warnings of the workspace do not apply to generated code.
        copts = ["-w"] + copts,
        deps = deps + ["@system//:protobuf"] + (["@system//:grpc++"] if grpc else []),
        **kwargs
    )

def own_proto_library(**kwargs):
    """A gradwire_proto_library of Gradwire itself, whose files are imported as "gradwire/FOLDER/FILE"."""
    gradwire_proto_library(include_prefix = _INCLUDE_PREFIX, **kwargs)
