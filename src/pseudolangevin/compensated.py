"""Sums more precise than their terms, without switching JAX to float64.

A sum is a pair (high, low) whose exact value is high + low; adding to it loses nothing down to about the square
of the machine epsilon (Knuth's two-sum). Metropolis steps need energies to a fraction of T: at T = 1e-6 and
U ≈ 0.2, plain float32 sums are not enough.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from .types import Array


class Sum(NamedTuple):
    """The unevaluated sum high + low."""

    high: Array
    low: Array


def _two_sum(a: Array, b: Array) -> Sum:
    total = a + b
    shadow = total - a
    return Sum(total, (a - (total - shadow)) + (b - shadow))


def zero() -> Sum:
    """The empty sum."""
    return Sum(jnp.zeros(()), jnp.zeros(()))


def add(left: Sum, right: Sum) -> Sum:
    """The sum of two sums."""
    total = _two_sum(left.high, right.high)
    return _two_sum(total.high, total.low + left.low + right.low)


def difference(left: Sum, right: Sum) -> Array:
    """left − right as a plain number; exact to rounding of the small result."""
    total = add(left, Sum(-right.high, -right.low))
    return total.high + total.low


def scale(value: Sum, factor: float) -> Sum:
    """The sum times a number, keeping the rounding error of the product.

    The factor itself is rounded to the working precision: a constant relative change of the unit, the same for
    every sum scaled by it, so differences of scaled sums stay as precise as the sums.
    """
    factor_array = jnp.asarray(factor, value.high.dtype)
    product = value.high * factor_array
    error = _product_error(value.high, factor_array, product)
    return _two_sum(product, error + value.low * factor_array)


def _split(a: Array) -> tuple[Array, Array]:
    """Two halves of the mantissa (Veltkamp), so that products of halves are exact (Dekker)."""
    mantissa_bits = jnp.finfo(a.dtype).nmant + 1
    shifted = a * (2.0 ** ((mantissa_bits + 1) // 2) + 1.0)
    high = shifted - (shifted - a)
    return high, a - high


def _product_error(a: Array, b: Array, product: Array) -> Array:
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def total(values: Array) -> Sum:
    """The sum of all entries of an array."""
    values = jnp.ravel(values)
    init = (jnp.zeros((), values.dtype), jnp.zeros((), values.dtype))

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return add(Sum(*left), Sum(*right))

    high, low = lax.reduce((values, jnp.zeros_like(values)), init, combine, (0,))
    return Sum(high, low)


def total_of_squares(values: Array) -> Sum:
    """The sum of squares of all entries, each square kept with its rounding error."""
    values = jnp.ravel(values)
    squares = values * values
    return add(total(squares), total(_product_error(values, values, squares)))
