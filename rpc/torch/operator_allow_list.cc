#include "gradwire/rpc/torch/operator_allow_list.h"

#include <algorithm>

#include "absl/strings/strip.h"
#include "gradwire/base/containers/hash_map.h"

// The operators that any peer may call. Each one was reviewed for safety: it computes a tensor or a number
// from its arguments alone and checks its arguments. It does not use files, streams or handles of other
// processes, and does not replace or resize the storage of an existing tensor.
//
// Left out on purpose:
//   - from_file, set_, resize_ and all operators that take or return a storage;
//   - as_strided, which can read memory outside the view that it is given;
//   - record_stream and other operators for streams and pinned memory;
//   - operators whose kernels do not check their index arguments (embedding_bag, ctc_loss, max_unpool*,
//     fractional pools);
//   - operators whose names start with "_";
//   - all overloads with out= arguments (operator_call.cc).
namespace gradwire::rpc {
namespace {

const HashSet<absl::string_view>& allowed() {
  // clang-format off
  static const auto* const names = new HashSet<absl::string_view>{
      // Pointwise.
      "abs", "absolute", "acos", "acosh", "add", "addcdiv", "addcmul", "angle", "arccos", "arccosh",
      "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh",
      "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
      "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "conj", "conj_physical", "copysign",
      "cos", "cosh", "deg2rad", "digamma", "div", "divide", "erf", "erfc", "erfinv", "exp", "exp2", "expm1",
      "fix", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "frexp", "gcd",
      "heaviside", "hypot", "i0", "igamma", "igammac", "imag", "lcm", "ldexp", "lerp", "lgamma", "log",
      "log10", "log1p", "log2", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or",
      "logical_xor", "logit", "maximum", "minimum", "mul", "multiply", "mvlgamma", "nan_to_num", "neg",
      "negative", "nextafter", "polar", "polygamma", "positive", "pow", "rad2deg", "real", "reciprocal",
      "remainder", "resolve_conj", "resolve_neg", "round", "rsqrt", "rsub", "sgn", "sigmoid", "sign",
      "signbit", "sin", "sinc", "sinh", "special_entr", "special_erf", "special_erfc", "special_erfinv",
      "special_exp2", "special_expit", "special_expm1", "special_gammainc", "special_gammaincc",
      "special_gammaln", "special_i0", "special_i0e", "special_i1", "special_i1e", "special_log1p",
      "special_logit", "special_ndtr", "special_ndtri", "special_psi", "special_round", "special_sinc",
      "special_xlog1py", "special_xlogy", "special_zeta", "sqrt", "square", "sub", "subtract", "tan",
      "tanh", "true_divide", "trunc", "where", "xlogy",
      // Comparisons.
      "allclose", "eq", "equal", "ge", "greater", "greater_equal", "gt", "isclose", "isfinite", "isin",
      "isinf", "isnan", "isneginf", "isposinf", "isreal", "le", "less", "less_equal", "lt", "ne",
      "not_equal",
      // Reductions and scans.
      "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "cummax", "cummin",
      "cumprod", "cumsum", "diff", "logcumsumexp", "logsumexp", "max", "mean", "median", "min", "mode",
      "nanmean", "nanmedian", "nanquantile", "nansum", "norm", "prod", "quantile", "std", "std_mean", "sum",
      "trace", "trapezoid", "trapz", "var", "var_mean",
      // Sorting and searching.
      "argsort", "bincount", "bucketize", "histc", "kthvalue", "msort", "searchsorted", "sort", "topk",
      "unique_consecutive", "unique_dim",
      // Matrices and linear algebra.
      "addbmm", "addmm", "addmv", "addr", "baddbmm", "bilinear", "bmm", "cdist", "chain_matmul", "cholesky",
      "cholesky_inverse", "cholesky_solve", "corrcoef", "cov", "cross", "det", "dist", "dot", "einsum",
      "ger", "inner", "inverse", "kron", "linalg_cholesky", "linalg_cond", "linalg_cross", "linalg_det",
      "linalg_diagonal", "linalg_eig", "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh", "linalg_inv",
      "linalg_lstsq", "linalg_matmul", "linalg_matrix_exp", "linalg_matrix_norm", "linalg_matrix_power",
      "linalg_matrix_rank", "linalg_multi_dot", "linalg_norm", "linalg_pinv", "linalg_qr", "linalg_slogdet",
      "linalg_solve", "linalg_solve_triangular", "linalg_svd", "linalg_svdvals", "linalg_vecdot",
      "linalg_vector_norm", "linear", "logdet", "matmul", "matrix_exp", "matrix_power", "mm", "mv", "outer",
      "pinverse", "qr", "renorm", "slogdet", "svd", "tensordot", "triangular_solve", "tril", "triu",
      "vander", "vdot",
      // Views, shapes and copies.
      "alias", "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_tensors", "broadcast_to",
      "cartesian_prod", "cat", "chunk", "clone", "column_stack", "combinations", "concat", "concatenate",
      "contiguous", "detach", "diag", "diag_embed", "diagflat", "diagonal", "dsplit", "dstack", "expand",
      "expand_as", "flatten", "flip", "fliplr", "flipud", "hsplit", "hstack", "mH", "mT", "matrix_H",
      "meshgrid", "moveaxis", "movedim", "narrow", "narrow_copy", "numpy_T", "permute", "ravel", "repeat",
      "repeat_interleave", "reshape", "reshape_as", "roll", "rot90", "row_stack", "select", "slice",
      "split", "split_with_sizes", "squeeze", "stack", "swapaxes", "swapdims", "t", "tensor_split", "tile",
      "to", "transpose", "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as",
      "view_as_complex", "view_as_real", "vsplit", "vstack",
      // Indexing.
      "argwhere", "constant_pad_nd", "diagonal_scatter", "embedding", "gather", "index", "index_add",
      "index_copy", "index_fill", "index_put", "index_select", "masked_fill", "masked_scatter",
      "masked_select", "nonzero", "nonzero_numpy", "one_hot", "scatter", "scatter_add", "scatter_reduce",
      "select_scatter", "slice_scatter", "take", "take_along_dim",
      // Creation of tensors.
      "arange", "bernoulli", "empty_like", "eye", "full", "full_like", "linspace", "logspace",
      "multinomial", "new_full", "new_ones", "new_zeros", "normal", "ones", "ones_like", "rand",
      "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "scalar_tensor",
      "tril_indices", "triu_indices", "zeros", "zeros_like",
      // Properties of tensors.
      "dense_dim", "is_complex", "is_floating_point", "is_nonzero", "is_same_size", "item", "result_type",
      "size", "sparse_dim", "stride", "to_dense",
      // Neural networks.
      "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d",
      "alpha_dropout", "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "binary_cross_entropy",
      "binary_cross_entropy_with_logits", "celu", "channel_shuffle", "conv1d", "conv2d", "conv3d",
      "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_embedding_loss",
      "cosine_similarity", "cross_entropy_loss", "dropout", "elu", "feature_dropout", "gelu", "glu",
      "group_norm", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hinge_embedding_loss",
      "huber_loss", "instance_norm", "kl_div", "l1_loss", "layer_norm", "leaky_relu", "log_sigmoid",
      "log_softmax", "margin_ranking_loss", "max_pool1d", "max_pool2d", "max_pool3d", "mish", "mse_loss",
      "nll_loss", "nll_loss_nd", "pad", "pairwise_distance", "pixel_shuffle", "pixel_unshuffle",
      "poisson_nll_loss", "prelu", "relu", "relu6", "rms_norm", "rrelu", "scaled_dot_product_attention",
      "selu", "silu", "smooth_l1_loss", "soft_margin_loss", "softmax", "softplus", "softshrink",
      "threshold", "triplet_margin_loss", "upsample_bilinear2d", "upsample_nearest2d",
      // Fourier transforms.
      "fft_fft", "fft_fft2", "fft_fftfreq", "fft_fftn", "fft_fftshift", "fft_hfft", "fft_ifft", "fft_ifft2",
      "fft_ifftn", "fft_ifftshift", "fft_ihfft", "fft_irfft", "fft_irfft2", "fft_irfftn", "fft_rfft",
      "fft_rfft2", "fft_rfftfreq", "fft_rfftn",
      // In-place operators, for the tensor of an RRef. They write to their first argument and keep its size
      // and storage.
      "abs_", "add_", "addcdiv_", "addcmul_", "addmm_", "bernoulli_", "ceil_", "clamp_", "clamp_max_",
      "clamp_min_", "copy_", "div_", "exp_", "fill_", "floor_", "index_add_", "index_copy_", "index_fill_",
      "index_put_", "lerp_", "log_", "masked_fill_", "mul_", "neg_", "normal_", "pow_", "reciprocal_",
      "relu_", "round_", "rsqrt_", "scatter_", "scatter_add_", "sigmoid_", "sign_", "sqrt_", "sub_",
      "tanh_", "trunc_", "uniform_", "zero_",
  };
  // clang-format on
  return *names;
}

}  // namespace

bool is_allowed_operator(absl::string_view name) {
  return absl::ConsumePrefix(&name, "aten::") && allowed().contains(name);
}

std::vector<absl::string_view> allowed_operators() {
  std::vector<absl::string_view> names(allowed().begin(), allowed().end());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace gradwire::rpc
