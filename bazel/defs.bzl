"""Rules for code with registrations for Gradwire, and for Gradwire's own tests and protocol messages."""

load("//bazel:precompile.bzl", "precompile", _OPTIMISED = "OPTIMISED")
load("//bazel:units.bzl", "INCLUDE_PREFIX", "add_to_unit", "in_unit", "joined", "uses_libtorch", "with_units", _unit = "unit")

OPTIMISED = _OPTIMISED
unit = _unit

def gradwire_cc_library(**kwargs):
    """A cc_library whose static registrars (GRADWIRE_RPC and similar macros) remain in a static link.

    Without alwayslink the linker drops an object file to which no other one refers, with the functions it registers.
    """
    kwargs["alwayslink"] = True
    precompile("torch" if uses_libtorch(kwargs.get("deps", [])) else "standard", kwargs)
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
            include_prefix = INCLUDE_PREFIX,
            strip_include_prefix = "/",
            testonly = kwargs.get("testonly", False),
            visibility = ["//visibility:private"],
        )
    if hdrs:
        kwargs["include_prefix"] = INCLUDE_PREFIX
        kwargs["strip_include_prefix"] = "/"
    all_deps = deps + [":" + name + ".own_headers"] if own else deps
    if in_unit(name, sources, deps, kwargs):
        label = add_to_unit(name, sources, hdrs + own, deps, kwargs.get("alwayslink", False))
        sources = with_units(sources, [])
        if hdrs:
            hdrs = with_units(hdrs, [])
            kwargs["include_prefix"] = with_units(INCLUDE_PREFIX, None)
            kwargs["strip_include_prefix"] = with_units("/", None)
        all_deps = with_units(all_deps, [label])
    else:
        sources, all_deps = _joined(name, sources, all_deps, kwargs.get("testonly", False))
    kwargs["deps"] = all_deps
    if srcs:
        precompile("torch" if uses_libtorch(deps) else "standard", kwargs)
    native.cc_library(name = name, srcs = sources, hdrs = hdrs, **kwargs)

def _joined(name, srcs, deps, testonly):
    # A single file needs no other that includes it. The label of a target may stand for several.
    if type(srcs) != "list" or not srcs or (len(srcs) == 1 and srcs[0].endswith(".cc")):
        return srcs, deps
    srcs, further = joined(name, srcs, testonly)
    return srcs, deps + further

def cc_binary(name, deps = [], **kwargs):
    """A cc_binary of Gradwire.

    Args:
      name: the target's name.
      deps: as in cc_binary.
      **kwargs: as in cc_binary.
    """
    kwargs["deps"] = deps
    if "srcs" in kwargs:
        kwargs["srcs"], kwargs["deps"] = _joined(name, kwargs["srcs"], deps, kwargs.get("testonly", False))
        precompile("torch" if uses_libtorch(deps) else "standard", kwargs)
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
        deep = False,
        tags = [],
        env = {},
        **kwargs):
    """A GoogleTest test.

    tools/test runs each test in the configurations that find the most: under ASan and UBSan, and, if it starts threads
    and does not link libtorch, under TSan. In builds with units its sources are compiled together.

    Args:
      name: the target's name.
      deps: as in cc_test.
      torch: the test links libtorch, which is not instrumented. TSan leaves it out.
      grpc: the test links Debian's gRPC, whose own synchronisation ThreadSanitizer cannot see, and some of whose threads
        may end after main().
      threads: False for a test that starts no thread. The TSan run leaves it out. The linked
        //base/testing:no_threads ends the test if it starts a thread.
      plain: True for a test that must also run without sanitizers: it is much shorter under them, or finds mistakes that
        occur only at full speed.
      sanitizers: False for a test that runs only without sanitizers: of a feature that they replace, for example crash
        handlers, or of the examples, which train for long with code that other tests run.
      concurrent: True for a test most of whose cases wait for a timeout or for another process. Its cases run at the
        same time, each in a process and with a TEST_TMPDIR of its own (//base/testing:concurrent_cases). The cases must
        not share anything by name, for example a port.
      deep: True for a test that takes long for what it finds. Only tools/test --all runs it, without sanitizers.
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
    if not sanitizers:
        tags.append("no-sanitizer")
    if plain:
        tags.append("plain")
    if deep:
        tags.append("deep")
    main = "//base/testing:concurrent_cases" if concurrent else "@system//:gtest_main"
    deps = deps + ["//base/testing:suppressions", main]
    if not threads:
        tags.append("no-tsan")
        deps.append("//base/testing:no_threads")
    kwargs["srcs"], kwargs["deps"] = _joined(name, kwargs.get("srcs", []), deps, True)
    precompile("torch_tests" if torch else "tests", kwargs)
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
    gradwire_proto_library(include_prefix = INCLUDE_PREFIX, **kwargs)
