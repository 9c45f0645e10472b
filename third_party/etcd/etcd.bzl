"""Finds the etcd server that tests start: the one that tools/setup unpacks, or the one that GRADWIRE_ETCD names."""

def _impl(ctx):
    path = ctx.os.environ.get("GRADWIRE_ETCD")
    if not path:
        cache = ctx.os.environ.get("XDG_CACHE_HOME") or ctx.os.environ.get("HOME", "") + "/.cache"
        path = cache + "/gradwire/etcd-3.4.23/etcd"
    if ctx.path(path).exists:
        ctx.symlink(path, "etcd")
    else:
        # No fail() here: the tests say why they are skipped, and everything else builds.
        ctx.file("etcd", "there is no etcd at {}: run tools/setup, or set GRADWIRE_ETCD\n".format(path), executable = False)
    ctx.file("BUILD.bazel", """exports_files(["etcd"])\n""")

etcd_repository = repository_rule(
    implementation = _impl,
    environ = ["GRADWIRE_ETCD", "XDG_CACHE_HOME", "HOME"],
    local = True,
)
