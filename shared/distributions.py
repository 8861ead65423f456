"""The tail functions that the tests and intervals need, for whole degrees of freedom: finite sums, no tables."""

from __future__ import annotations

import math

from shared.estimators import EstimatorError


def normal_two_sided(z: float) -> float:
    """P(|Z| >= |z|) for a standard normal Z."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_square_sf(x: float, df: int) -> float:
    """P(X >= x) for X chi-square with df degrees of freedom.

    Integrating by parts lowers df by two and leaves a term, h^s exp(-h) / Gamma(s + 1) with h = x / 2, until
    nothing is left for even df (s = 0, 1, ... df/2 - 1) and erfc(sqrt(h)) for odd (s = 1/2, 3/2, ... df/2 - 1):
    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.4.4 and 26.4.5. No term is negative, so
    nothing cancels; beyond x = 1400 they underflow.

    Raises:
        EstimatorError: If df is below 1 or x is not a finite number of 0 or more.
    """
    if df < 1 or not 0 <= x < math.inf:
        raise EstimatorError("BAD_ARGUMENT", "a chi-square tail needs a finite x >= 0 and df >= 1")
    h = x / 2
    odd = df % 2
    tail = math.erfc(math.sqrt(h)) if odd else 0.0
    term = math.exp(-h) * (2 * math.sqrt(h / math.pi) if odd else 1.0)
    for i in range(df // 2):
        tail += term
        term *= h / (i + 1 + odd / 2)
    return tail


def t_quantile(p: float, df: int) -> float:
    """The t with P(T <= t) = p for Student's T with df degrees of freedom.

    With t = sqrt(df) tan(angle), P(|T| <= t) is a finite sum of powers of cos(angle) (Abramowitz and Stegun,
    26.7.3 and 26.7.4) and grows with the angle, so bisection finds it to the last bit or two.

    Raises:
        EstimatorError: If df is below 1 or p does not lie between 0 and 1.
    """
    if df < 1 or not 0 < p < 1:
        raise EstimatorError("BAD_ARGUMENT", "a t quantile needs 0 < p < 1 and df >= 1")
    within = abs(2 * p - 1)
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _t_within(middle, df) < within:
            low = middle
        else:
            high = middle
    return math.copysign(math.sqrt(df) * math.tan(low), p - 0.5)


def _t_within(angle: float, df: int) -> float:
    """P(|T| <= sqrt(df) tan(angle))."""
    cos2 = math.cos(angle) ** 2
    odd = df % 2
    total, term = 0.0, math.cos(angle) if odd else 1.0
    for i in range(df // 2):
        total += term
        # odd: 2/3, 4/5, 6/7, ...; even: 1/2, 3/4, 5/6, ...
        term *= cos2 * (2 * i + 1 + odd) / (2 * i + 2 + odd)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
