"""Resources from a folder, for machines without network access.

The folder holds those of `vectors.npz` or `neighbours.json[.gz]`, `encoder/`, `masked_lm/` and
`nltk_data/` that the recipe needs; `resources.json` may give names and other paths.
`docs/attacks.md` describes each.
"""

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.devices import default_device
from babn.errors import DataError, one_line
from babn.files import parse_json, read_bytes
from babn.text import quiet
from babn_paper.attacks.plan import Recipe
from babn_paper.attacks.resources import (
    NEEDS,
    ORIGINALS,
    Encode,
    Kind,
    Provider,
    Resource,
    ResourceError,
)
from babn_paper.data_files import open_data, read_data
from babn_paper.pretrained import FAILURES, model_source

LONGEST = 512
"""Largest number of tokens to which texts are truncated."""

WORDPIECE_FAMILIES = ("bert", "roberta", "electra", "bart", "longformer", "xlnet")
"""Model types for which TextAttack distinguishes words from subwords."""


class MeanPooled:
    """A sentence encoder: a transformer with mean pooling over tokens.

    Args:
        folder: Folder of the model and its tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel

        self.tokenizer, self.model = _load(AutoModel, folder)

    def __call__(self, texts: Sequence[str]) -> Float[Tensor, "text dim"]:
        """Encodes texts, repeated texts only once."""
        places = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        found = self._encode(list(places))
        return found[[places[text] for text in texts]]

    def _encode(self, texts: list[str]) -> Float[Tensor, "text dim"]:
        batch = self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=longest(self.model),
            return_tensors="pt",
        ).to(self.model.device)
        with torch.no_grad():
            states = self.model(**batch).last_hidden_state
        inside = batch["attention_mask"].unsqueeze(-1)
        mean: Tensor = (states * inside).sum(1) / inside.sum(1).clamp(min=1)
        return mean.cpu()


def load_masked_lm(folder: Path) -> tuple[Any, Any]:
    """Loads a masked language model and its tokenizer."""
    from transformers import AutoModelForMaskedLM

    tokenizer, model = _load(AutoModelForMaskedLM, folder)
    if model.config.model_type not in WORDPIECE_FAMILIES:
        raise ResourceError(
            f"{folder} is a model of type {model.config.model_type}, for which BAE cannot "
            f"distinguish words from subwords. Give one of {list(WORDPIECE_FAMILIES)}."
        )
    if tokenizer.mask_token is None:
        raise ResourceError(f"The tokenizer in {folder} has no mask token. Set its mask_token.")
    return model, tokenizer


def longest(model: Any) -> int:
    """Number of tokens to which texts are truncated for a model."""
    most = getattr(model.config, "max_position_embeddings", LONGEST)
    # RoBERTa numbers its positions from pad_token_id + 1.
    offset = model.config.pad_token_id + 1 if "roberta" in model.config.model_type else 0
    return min(LONGEST, most - offset)


def _load(auto: Any, folder: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, found = auto.from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
    except FAILURES as error:
        raise ResourceError(
            f"{folder} cannot be loaded: {shorten(str(error), 300)} Save a model and its "
            "tokenizer there with save_pretrained."
        ) from error
    missing = sorted(key for key in found["missing_keys"] if "pooler" not in key)
    if missing:
        raise ResourceError(
            f"{folder} has no weights for {missing[0]} and {len(missing) - 1} more, which would be "
            "random. Give a model whose weights match its config.json."
        )
    return tokenizer, model.to(default_device()).eval()


MOST = 50
"""Neighbours of a word, the most that any recipe uses."""


class Nearest:
    """Indices of the nearest words, computed on demand; the word itself comes first.

    Ties are broken by index, so that attacks are reproducible. `sklearn.neighbors.NearestNeighbors`
    does neither, and would need the same sorting around it.

    Args:
        vectors: Word vectors of length 1.
    """

    def __init__(self, vectors: Float[np.ndarray, "word dim"]) -> None:
        self.vectors = vectors
        self._found = lru_cache(maxsize=2**14)(self._find)

    def __getitem__(self, word: int) -> Int[np.ndarray, "neighbour"]:
        return self._found(int(word))

    def _find(self, word: int) -> Int[np.ndarray, "neighbour"]:
        cosines = self.vectors @ self.vectors[word]
        cosines[word] = np.inf  # comes before words with the same vector
        count = min(MOST + 1, len(cosines))
        nearest = np.argpartition(-cosines, count - 1)[:count]
        return nearest[np.lexsort((nearest, -cosines[nearest]))]


def read_embedding(path: Path, base: type[Any]) -> Any:
    """Reads `vectors.npz` or a table of neighbours as an embedding for TextAttack.

    Args:
        path: The file.
        base: TextAttack's class `WordEmbedding`.
    """
    if path.suffix == ".npz":
        words, vectors = read_vectors(path)
        return base(vectors, *_indices(words), Nearest(vectors))
    return _of_table(read_table(path), base)


def read_vectors(path: Path) -> tuple[list[str], Float[np.ndarray, "word dim"]]:
    """Reads words and their vectors, which are normalized to length 1."""
    try:
        with open_data(path) as file, np.load(file, allow_pickle=False) as found:
            words, vectors = found["words"].tolist(), found["vectors"].astype(np.float32)
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        raise ResourceError(
            f"{path} cannot be read: {one_line(error)}. It must have two arrays, words and vectors."
        ) from error
    if vectors.ndim != 2 or len(words) != len(vectors) or not len(words):
        raise ResourceError(
            f"{path} has {len(words)} words and vectors of shape {vectors.shape}. Give one vector "
            "for each word."
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return words, vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def read_table(path: Path) -> dict[str, list[str]]:
    """Reads the neighbours of each word, nearest first."""
    try:
        found = parse_json(read_data(path))
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ResourceError(f"{path} cannot be read: {error}. It must be a JSON object.") from error
    if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
        raise ResourceError(f"{path} must map each word to a list of words.")
    return found


def _of_table(table: Mapping[str, Sequence[str]], base: type[Any]) -> Any:
    words = list(dict.fromkeys([*table, *(word for near in table.values() for word in near)]))
    to_index, to_word = _indices(words)
    rows = [[i, *(to_index[near] for near in table.get(word, ()))] for i, word in enumerate(words)]
    pairs = {(row[0], near) for row in rows for near in row[1:]}

    class Table(base):
        """Knows which words are neighbours, but not their distances."""

        def get_cos_sim(self, a: int, b: int) -> float:
            """1 for neighbours, so that any threshold accepts them, else 0."""
            return 1.0 if a == b or (a, b) in pairs or (b, a) in pairs else 0.0

    return Table(np.zeros((len(words), 1), np.float32), to_index, to_word, rows)


def _indices(words: Sequence[str]) -> tuple[dict[str, int], dict[int, str]]:
    return {word: i for i, word in enumerate(words)}, dict(enumerate(words))


PLACES: dict[Kind, tuple[str, ...]] = {
    "vectors": ("vectors.npz", "neighbours.json.gz", "neighbours.json"),
    "encoder": ("encoder",),
    "masked_lm": ("masked_lm",),
    "nltk": ("nltk_data",),
}
"""Default paths of each resource."""

NLTK_FILES = (
    "corpora/stopwords/english",
    "taggers/averaged_perceptron_tagger_eng",
    "taggers/universal_tagset/en-ptb.map",
)

FIELDS = {"path", "name", "original"}


class LocalResources(Provider):
    """Resources from a folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ResourceError(f"resources={str(folder)!r} is not a folder. See docs/attacks.md.")

    def describe(self, recipe: Recipe) -> dict[Kind, Resource]:
        """Names and fingerprints of the resources that the recipe needs."""
        return {kind: self._resource(kind) for kind in NEEDS[recipe]}

    @property
    def nltk_data(self) -> Path:
        """The folder of NLTK's data; raises if a file is missing that recipes need."""
        found = self.path("nltk")
        missing = [name for name in NLTK_FILES if not (found / name).exists()]
        if missing:
            raise ResourceError(f"{found} has no {' and no '.join(missing)}. See docs/attacks.md.")
        return found

    def embedding(self, base: type[Any]) -> Any:
        """Word vectors, or a table of neighbours."""
        return read_embedding(self.path("vectors"), base)

    def encoder(self) -> Encode:
        """A transformer with mean pooling over tokens."""
        return MeanPooled(self.path("encoder"))

    def masked_lm(self) -> tuple[Any, Any]:
        """The model and its tokenizer."""
        return load_masked_lm(self.path("masked_lm"))

    def path(self, kind: Kind) -> Path:
        """The path of a resource."""
        given = self._names.get(kind, {}).get("path")
        places = (given,) if given else PLACES[kind]
        for place in places:
            if (found := self._resolve(kind, place)).exists():
                return found
        raise ResourceError(
            f"{self.folder} has no {' or '.join(places)}, which the attack needs in place of "
            f"{ORIGINALS[kind]}. There is no fallback; see docs/attacks.md."
        )

    def _resolve(self, kind: Kind, place: str) -> Path:

        is_installed = kind == "encoder" and place == "minilm"
        return Path(model_source(place)) if is_installed else self.folder / place

    def _resource(self, kind: Kind) -> Resource:
        path = self.nltk_data if kind == "nltk" else self.path(kind)
        named = self._names.get(kind, {})
        # NLTK's data is the original by default; for other resources the user has to say so.
        is_original = bool(named.get("original", kind == "nltk"))
        name = named.get("name") or (ORIGINALS[kind] if is_original else path.name)
        table = kind == "vectors" and path.suffix != ".npz"
        note = "a table of neighbours: the threshold on cosines is not applied" if table else ""
        return Resource(name, ORIGINALS[kind], not is_original, fingerprint(path), note)

    @cached_property
    def _names(self) -> dict[str, dict[str, Any]]:
        path = self.folder / "resources.json"
        if not path.exists():
            return {}
        try:
            found: dict[str, dict[str, Any]] = parse_json(read_bytes(path))
            fields = {field for entry in found.values() for field in entry}
        except (ValueError, AttributeError, TypeError) as error:
            raise ResourceError(
                f"{path} cannot be read: {error!r}. See docs/attacks.md."
            ) from error
        if unknown := sorted((found.keys() - PLACES.keys()) | (fields - FIELDS)):
            raise ResourceError(
                f"{path} has {', '.join(unknown)}. Resources are {list(PLACES)}, their fields "
                f"{sorted(FIELDS)}."
            )
        return found


def fingerprint(path: Path) -> str:
    """A hash of the content of a file, or of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    inside = [path] if path.is_file() else sorted(path.rglob("*"))
    for each in filter(Path.is_file, inside):
        digest.update(each.relative_to(path).as_posix().encode())
        with each.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
