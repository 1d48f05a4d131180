"""Resources from a folder, for machines without network access.

The folder holds those of `vectors.npz` or `neighbours.json[.gz]`, `encoder/`, `masked_lm/` and
`nltk_data/` that the recipe needs; `resources.json` may give names and other paths.
`docs/attacks.md` describes each.
"""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from babn.files import parse_json, read_regular
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
from babn_paper.attacks.transformer_resources import MeanPooled, load_masked_lm
from babn_paper.attacks.word_neighbours import read_embedding

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
        from babn.text import model_source

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
            found: dict[str, dict[str, Any]] = parse_json(read_regular(path))
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
