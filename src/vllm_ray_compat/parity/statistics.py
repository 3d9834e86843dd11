"""What a comparison of so many requests and tokens can and cannot show."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

#: The chance taken of missing an effect of the stated size.
ALPHA = 0.05


class Statistics(BaseModel):
    """The size of a comparison, and the smallest effect it would have shown.

    Requests are taken as independent draws; of tokens that holds less, as one that diverges
    changes those after it, so the fraction of tokens is the more optimistic of the two.
    """

    model_config = ConfigDict(extra="forbid")

    alpha: float = ALPHA
    requests: int
    tokens: int
    different: int
    noise_runs: int = Field(description="Runs of the reference; 1: no noise floor was measured.")
    noise_requests: int = Field(description="Requests compared between runs of the reference.")
    noise_different: int
    smallest_request_fraction: float | None = Field(
        description="Fraction of differing requests that shows at least one of them with "
        "probability 1 - alpha; a smaller one can have been missed. None: nothing was compared."
    )
    smallest_token_fraction: float | None = Field(description="The same for tokens.")
    smallest_noise_fraction: float | None = Field(description="The same for the noise floor.")
    p_value: float | None = Field(
        description="Of as many differences as there are, or more, if the candidate differs as "
        "often as the reference from itself (Fisher's exact test, one-sided). None: no noise."
    )


def statistics(
    requests: int,
    tokens: int,
    different: int,
    noise_runs: int,
    noise_requests: int,
    noise_different: int,
    alpha: float = ALPHA,
) -> Statistics:
    """Return the statistics of one comparison; the arguments are counts."""
    p_value = None
    if noise_different and noise_requests and requests:
        p_value = fisher(different, requests, noise_different, noise_requests)
    return Statistics(
        alpha=alpha,
        requests=requests,
        tokens=tokens,
        different=different,
        noise_runs=noise_runs,
        noise_requests=noise_requests,
        noise_different=noise_different,
        smallest_request_fraction=smallest_fraction(requests, alpha),
        smallest_token_fraction=smallest_fraction(tokens, alpha),
        smallest_noise_fraction=smallest_fraction(noise_requests, alpha),
        p_value=p_value,
    )


def smallest_fraction(n: int, alpha: float = ALPHA) -> float | None:
    """Return the least fraction of which *n* draws show one with probability 1 - *alpha*.

    That is ``1 - alpha**(1/n)``, near ``3/n`` for 0.05 (the rule of three). It is also the upper
    confidence bound of the true fraction when none of the n differ.
    """
    return -math.expm1(math.log(alpha) / n) if n > 0 else None


def fisher(k: int, n: int, noise_k: int, noise_n: int) -> float:
    """Return P(at least *k* of the differences fall among *n*), all being equally likely to.

    Args:
        k: differing requests of the candidate.
        n: its requests.
        noise_k: differing requests of the noise floor.
        noise_n: its requests.
    """
    total, differing = n + noise_n, k + noise_k
    all_ways = _log_choose(total, differing)
    return min(
        1.0,
        math.fsum(
            math.exp(_log_choose(n, i) + _log_choose(noise_n, differing - i) - all_ways)
            for i in range(k, min(n, differing) + 1)
            if differing - i <= noise_n
        ),
    )


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
