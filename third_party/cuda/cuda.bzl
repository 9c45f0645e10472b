"""Finds NVIDIA's CUDA toolkit with NCCL: /usr/local/cuda, or the folder that CUDA_HOME names."""

def _impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    headers = ctx.path(home + "/include")
    nccl = ctx.path(home + "/include/nccl.h").exists or ctx.path("/usr/include/nccl.h").exists
    if not ctx.path(home + "/include/cuda_runtime.h").exists or not nccl:
        # There is no fail() here, because a build without --config=cuda needs no toolkit.
        ctx.file("BUILD.bazel", """
genrule(
    name = "missing",
    outs = ["missing.cc"],
    cmd = "echo 'CUDA toolkit with NCCL not found at {home}: install NVIDIA CUDA 13.0 and set CUDA_HOME to its folder' >&2; false",
)

cc_library(
    name = "cuda",
    srcs = ["missing.cc"],
    visibility = ["//visibility:public"],
)
""".format(home = home))
        return

    ctx.symlink(headers, "include")
    libs = home + "/lib64" if ctx.path(home + "/lib64").exists else home + "/lib"
    ctx.template("BUILD.bazel", ctx.attr._build_file, {"%{libdir}": libs})

cuda_repository = repository_rule(
    implementation = _impl,
    attrs = {"_build_file": attr.label(default = "//third_party/cuda:cuda.BUILD", allow_single_file = True)},
    environ = ["CUDA_HOME"],
    local = True,
)
