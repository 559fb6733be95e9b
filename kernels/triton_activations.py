"""The activations and their derivatives on a tile of scores, for Triton kernels.

With FAST the hardware's tanh (NVIDIA, sm_75 and later; one MUFU operation, relative error 2^-11) takes the place of erf
and exp: its error is below the rounding of a score to 16 bits. Without, all is as exact as fp32 is.
"""

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _gelu_tanh_argument(x):
    """(z, z'): the argument of GELU's tanh form and its derivative."""
    x2 = x * x
    z = x * (0.7978845608028654 + 0.035677408136300125 * x2)
    return z, 0.7978845608028654 + 0.10703222440890037 * x2


@triton.jit
def _gelu_erf_argument(x):
    """(z, z') with 0.5 (1 + tanh(z)) = Phi(x) to 1.1e-5: an odd polynomial, fitted to the error of GELU (at most
    2.6e-5). Beyond the clamp, where the polynomial would turn back, tanh is 1 in fp32."""
    x2 = tl.minimum(x * x, 40.0)
    z = x * (0.7975052754260425 + x2 * (0.03700801995992631 - 0.00035190238965079423 * x2))
    return z, 0.7975052754260425 + x2 * (0.11102405987977893 - 0.0017595119482539712 * x2)


@triton.jit
def _half_tanh_form(x, z, dz):
    """(f, f') of f(x) = x u with u = (1 + tanh z) / 2, from z and dz = z'."""
    t = _tanh(z)
    u = 0.5 + 0.5 * t
    y = x * u
    return y, u + y * (dz - t * dz)  # 2 (1 - u) = 1 - t


@triton.jit
def _logistic_form(x, z, dz):
    """The same, from the logistic function: u = 1 / (1 + exp(-2 z))."""
    u = tl.sigmoid(2 * z)
    y = x * u
    return y, u + y * (2 * (1 - u) * dz)


@triton.jit
def activate_with_derivative(x, NAME: tl.constexpr, FAST: tl.constexpr):
    """(f(x), f'(x)), float32; what is not used costs nothing."""
    if NAME == "gelu":
        if FAST:
            z, dz = _gelu_erf_argument(x)
            return _half_tanh_form(x, z, dz)
        phi = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        return x * phi, phi + x * (0.3989422804014327 * tl.exp(-0.5 * x * x))
    elif NAME == "gelu_tanh":
        z, dz = _gelu_tanh_argument(x)
        if FAST:
            return _half_tanh_form(x, z, dz)
        return _logistic_form(x, z, dz)
    elif NAME == "silu":
        if FAST:
            h = 0.5 * x
            t = _tanh(h)
            y = h + h * t
            return y, (0.5 + 0.5 * t) + y * (0.5 - 0.5 * t)
        return _logistic_form(x, 0.5 * x, 0.5)
    elif NAME == "relu":
        return tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)
    elif NAME == "relu2":
        r = tl.maximum(x, 0.0)
        return r * r, 2 * r
    elif NAME == "leaky_relu":
        return tl.maximum(x, 0.01 * x), tl.where(x > 0, 1.0, 0.01)
    elif NAME == "hardswish":
        return (
            x * (tl.minimum(tl.maximum(x + 3, 0.0), 6.0) * 0.16666666666666666),
            tl.where(x <= -3, 0.0, tl.where(x < 3, x * 0.3333333333333333 + 0.5, 1.0)),
        )
    else:
        tl.static_assert(NAME == "identity")
        return x, tl.zeros_like(x) + 1


@triton.jit
def activate(x, NAME: tl.constexpr, FAST: tl.constexpr):
    """f(x), float32."""
    y, _ = activate_with_derivative(x, NAME, FAST)
    return y
