"""Finds libtorch: the unpacked wheel that tools/setup installs, or the one that GRADWIRE_LIBTORCH names."""

# The libraries that a program without CUDA loads, by folder of the unpacked wheels. The last two are dependencies of
# libtorch_cpu.so, with or without a GPU.
_LIBRARIES = {
    "torch/lib": ["libtorch_cpu.so", "libc10.so", "libgomp.so.1"],
    "nvidia/cu13/lib": ["libcudart.so.13", "libcupti.so.13"],
}

def _impl(ctx):
    root = ctx.os.environ.get("GRADWIRE_LIBTORCH")
    if not root:
        cache = ctx.os.environ.get("XDG_CACHE_HOME") or ctx.os.environ.get("HOME", "") + "/.cache"
        root = cache + "/gradwire/libtorch-2.11.0"
    torch = ctx.path(root + "/torch")

    # For a test that reads the names in PyTorch's own sources, which the wheel contains.
    ctx.file("location", root + "\n", executable = False)
    ctx.file("paths.bzl", """\"\"\"The folders of libtorch's headers, as a compiler finds them without Bazel.\"\"\"

LIBTORCH_HEADERS = ["{torch}/include", "{torch}/include/torch/csrc/api/include"]
""".format(torch = torch), executable = False)
    if not torch.exists:
        # There is no fail() here, because targets without libtorch must build on a machine that does not have it.
        ctx.file("BUILD.bazel", """
exports_files(["location"])

genrule(
    name = "missing",
    outs = ["missing.cc"],
    cmd = "echo 'libtorch not found at {root}: run tools/setup, or set GRADWIRE_LIBTORCH' >&2; false",
)

cc_library(
    name = "libtorch",
    srcs = ["missing.cc"],
    visibility = ["//visibility:public"],
)

cc_library(
    name = "libtorch_cuda",
    srcs = ["missing.cc"],
    visibility = ["//visibility:public"],
)
""".format(root = root))
        return

    # All headers except google/, which is Protobuf 3.13 and would hide the system's. Actions run without a sandbox, so
    # a glob without it would not be enough.
    for entry in ctx.path(root + "/torch/include").readdir():
        if entry.basename != "google":
            ctx.symlink(entry, "include/" + entry.basename)
    for folder, names in _LIBRARIES.items():
        for name in names:
            library = ctx.path("%s/%s/%s" % (root, folder, name))
            # A wheel for the CPU alone has no libraries of CUDA.
            if library.exists:
                ctx.symlink(library, "lib/" + name)
    ctx.template("BUILD.bazel", ctx.attr._build_file, {"%{libdir}": str(torch) + "/lib"})

libtorch_repository = repository_rule(
    implementation = _impl,
    attrs = {"_build_file": attr.label(default = "//third_party/libtorch:libtorch.BUILD", allow_single_file = True)},
    environ = ["GRADWIRE_LIBTORCH", "XDG_CACHE_HOME", "HOME"],
    local = True,
)
