/**
 * The modeled curve: what speculative decoding would yield if acceptance were i.i.d. (Leviathan et al. 2023,
 * arXiv:2211.17192: Eq. 1 and Theorem 3.8, with the verifying pass at its own cost). The same as shared/curve.py.
 */

/** The longest draft that a run takes. */
export const MOST_K = 16;

/** Expected tokens of a step, 1 + alpha + ... + alpha^k, the correction or bonus token included. */
export function expectedTokens(alpha, k) {
  let total = 1;
  for (let i = 0; i < k; i += 1) total = 1 + alpha * total;
  return total;
}

/** Expected speed-up over plain decoding; costs in target passes over one token. Nothing is verified at k = 0. */
export function expectedSpeedup(alpha, k, costRatio, verifyCost = 1) {
  return expectedTokens(alpha, k) / (k * costRatio + verifyCost);
}

/** The k from 0 to `most` with the highest modeled speed-up, the smallest on a tie; 0 means: do not speculate. */
export function optimalK(alpha, costRatio, verifyCost, most) {
  let best = 0;
  let highest = 1;
  for (let k = 1; k <= most; k += 1) {
    const speedup = expectedSpeedup(alpha, k, costRatio, verifyCost);
    if (speedup > highest) [best, highest] = [k, speedup];
  }
  return best;
}

/** The alpha above which k draft tokens gain something, null if none does: where the curve crosses 1. */
export function breakEven(k, costRatio, verifyCost) {
  if (k === 0 || expectedSpeedup(1, k, costRatio, verifyCost) <= 1) return null;
  let [low, high] = [0, 1];
  for (let i = 0; i < 50; i += 1) {
    const middle = (low + high) / 2;
    if (expectedSpeedup(middle, k, costRatio, verifyCost) < 1) low = middle;
    else high = middle;
  }
  return high;
}

/** Numbers from `first` to `last`, `count` of them. */
export const spaced = (first, last, count) =>
  Array.from({ length: count }, (_, i) => first + ((last - first) * i) / (count - 1));
