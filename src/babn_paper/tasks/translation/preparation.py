"""How sentences are written before they are cut into pieces."""

import re
from typing import Literal

Preparation = Literal["as-is", "tokenized", "lowercase"]
"""As it stands; words and punctuation apart, as Moses does; or that in small letters as well."""

TOKEN = re.compile(r"\d+(?:[.,]\d+)*|['’]\w+|\w+(?:-\w+)*|[^\w\s]")

JOINT = re.compile(r"@@( |$)")
"""Where subword-nmt has cut a word."""


def prepared(text: str, preparation: Preparation) -> str:
    """A sentence with single spaces, and its words set apart where that is asked for.

    Args:
        text: The sentence.
        preparation: What to do; `"as-is"` suits text that is tokenised already.
    """
    if preparation == "as-is":
        return " ".join(text.split())
    words = " ".join(TOKEN.findall(text))
    return words.lower() if preparation == "lowercase" else words


def without_joints(text: str) -> str:
    """A sentence whose words subword-nmt had cut, with whole words."""
    return JOINT.sub("", text)
