"""The folder of an attack, inside that of a run."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from babn.errors import ConfigError, FormatError
from babn.files import parse_json, read_regular
from babn_paper.attacks.plan import Plan
from babn_paper.attacks.attack_records import AttackRecord, append_record, drop_broken_end, read_records
from babn_paper.attacks.attack_records import Summary
from babn_paper.experiments.run_folder import RunFolder, write_json

FORMAT = 1


class AttackFolder:
    """Records, settings and page of one attack.

    Attributes:
        path: The folder.
        records: One line for each example.
        description: Settings, resources, versions and numbers.
        page: Pairs of texts side by side.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = path / "attacks.jsonl"
        self.description = path / "attack.json"
        self.page = path / "attacks.html"

    @classmethod
    def of(cls, run: Path, plan: Plan) -> "AttackFolder":
        """The folder of an attack on the model of a run."""
        return cls(run / "attacks" / plan.name)

    def locked(self) -> AbstractContextManager[None]:
        """Keeps a second process away; other attacks on the same model may go on."""
        return RunFolder(self.path).locked()

    def clear(self) -> None:
        """Takes away what an attack has written."""
        for each in (self.records, self.description, self.page):
            each.unlink(missing_ok=True)

    def begin(self, identity: dict[str, Any], description: dict[str, Any]) -> None:
        """Notes what is done here, or checks that it is what was begun here.

        Args:
            identity: All that decides the records.
            description: What else a reader should know.
        """
        drop_broken_end(self.records)
        if self.description.exists() and self.read():
            self._check_same(self.describe()["identity"], identity)
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(
            self.description,
            {"format": FORMAT, "state": "unfinished", "identity": identity, **description},
        )

    def finish(self, summary: Summary) -> None:
        """Adds the numbers."""
        write_json(self.description, {**self.describe(), "state": "done", "summary": summary})

    def describe(self) -> dict[str, Any]:
        """What `begin` and `finish` wrote."""
        try:
            found: dict[str, Any] = parse_json(read_regular(self.description))
            if found["format"] != FORMAT:
                raise FormatError(
                    f"{self.description} has format {found['format']}; this babn reads {FORMAT}."
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(
                f"{self.description} cannot be read: {error!r}. Attack again with --overwrite."
            ) from error
        return found

    def add(self, record: AttackRecord) -> None:
        """Writes what came of an example."""
        append_record(self.records, record)

    def read(self) -> list[AttackRecord]:
        """What came of the examples so far."""
        return read_records(self.records)

    def _check_same(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        plain = json.loads(json.dumps(now))
        changed = [name for name in plain if before.get(name) != plain[name]]
        if changed:
            told = ", ".join(f"{n}={before.get(n)!r} (now {plain[n]!r})" for n in changed)
            raise ConfigError(
                f"{self.path} was begun with {told}. Go on with the same, or begin again with "
                "--overwrite."
            )


def attack_folders(run: Path) -> list[AttackFolder]:
    """The finished attacks on the model of a run."""
    found = [AttackFolder(path.parent) for path in sorted(run.glob("attacks/*/attack.json"))]
    return [each for each in found if each.describe()["state"] == "done"]
