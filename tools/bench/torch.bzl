"""Compiler options of targets that use torch's own distributed classes."""

# torch's headers declare these classes only with these macros.
TORCH_RPC_COPTS = [
    "-DUSE_DISTRIBUTED",
    "-DUSE_RPC",
    "-DUSE_TENSORPIPE",
]
