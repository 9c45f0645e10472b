"""What targets have in common that use torch's own distributed classes."""

# torch's headers declare these classes only when told so.
TORCH_RPC_COPTS = [
    "-DUSE_DISTRIBUTED",
    "-DUSE_RPC",
    "-DUSE_TENSORPIPE",
]
