"""BLEU over words that stand apart already, as Moses' `multi-bleu.perl` computes it."""

import math
from collections import Counter
from collections.abc import Sequence

ORDER = 4


def multi_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    r"""BLEU of a corpus with one reference (Papineni et al. 2002), without smoothing.

    $$\min\left(1, e^{1 - r/c}\right) \left(\prod_{n=1}^4 p_n\right)^{1/4},$$

    with the share $p_n$ of n-grams of hypotheses that are in references, and the numbers $c$ and
    $r$ of words in hypotheses and references. Zero where no sequence of four words is right.

    Args:
        hypotheses: Sentences with spaces between words.
        references: What they should be.
    """
    right, made = [0] * ORDER, [0] * ORDER
    written = wanted = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        ours, theirs = hypothesis.split(), reference.split()
        written, wanted = written + len(ours), wanted + len(theirs)
        for n in range(ORDER):
            found, known = _ngrams(ours, n + 1), _ngrams(theirs, n + 1)
            right[n] += (found & known).total()
            made[n] += found.total()
    if not all(right):
        return 0.0
    brevity = min(0.0, 1 - wanted / written)
    logs = sum(math.log(r / m) for r, m in zip(right, made, strict=True))
    return math.exp(brevity + logs / ORDER)


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
