"""The folder of an attack, inside the folder of a run."""

import json
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from babn.errors import ConfigError, FormatError
from babn.files import parse_json, read_object, read_regular
from babn_paper.attacks.attack_records import AttackRecord, Summary
from babn_paper.attacks.plan import Plan
from babn_paper.experiments.experiment import current_names
from babn_paper.experiments.run_folder import RunFolder, write_json

FORMAT = 1


class AttackFolder:
    """Records, settings and page of one attack.

    Attributes:
        path: The folder.
        records: The records, one line for each example.
        description: Settings, resources, versions and summary.
        page: The HTML page.
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
        """Holds the lock of this attack; other attacks on the same model are not affected."""
        return RunFolder(self.path).locked()

    def clear(self) -> None:
        """Deletes the files of the attack."""
        for each in (self.records, self.description, self.page):
            each.unlink(missing_ok=True)

    def begin(self, identity: dict[str, Any], description: dict[str, Any]) -> None:
        """Writes the description, or checks that an existing attack is the same one.

        Args:
            identity: Everything that determines the records.
            description: Further information for readers.
        """
        self._drop_broken_end()
        if self.description.exists() and self.read():
            self._check_same(self.describe()["identity"], identity)
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(
            self.description,
            {"format": FORMAT, "state": "unfinished", "identity": identity, **description},
        )

    def finish(self, summary: Summary) -> None:
        """Adds the summary to the description."""
        write_json(self.description, {**self.describe(), "state": "done", "summary": summary})

    def describe(self) -> dict[str, Any]:
        """Reads the description."""
        found = current_names(read_object(self.description, "Attack again with --overwrite."))
        if found.get("format") != FORMAT:
            raise FormatError(
                f"{self.description} has format {found.get('format')}; this babn reads {FORMAT}."
            )
        return found

    def add(self, record: AttackRecord) -> None:
        """Appends the record of an example."""
        with self.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")

    def read(self) -> list[AttackRecord]:
        """Reads all records in order."""
        lines = read_regular(self.records).splitlines() if self.records.exists() else []
        return [self._record(number, line) for number, line in enumerate(lines, 1)]

    def _record(self, number: int, line: bytes) -> AttackRecord:
        try:
            return AttackRecord(**parse_json(line))
        except (ValueError, TypeError) as error:  # not UTF-8, not JSON, or other fields
            raise FormatError(
                f"{self.records}:{number} is damaged. Attack again with --overwrite."
            ) from error

    def _drop_broken_end(self) -> None:
        """Removes an incomplete last line, which a killed process leaves."""
        if self.records.exists():
            content = read_regular(self.records)
            complete = content[: content.rfind(b"\n") + 1]
            if complete != content:
                self.records.write_bytes(complete)

    def _check_same(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        plain = json.loads(json.dumps(now))
        changed = [name for name in plain if before.get(name) != plain[name]]
        if changed:
            listed = ", ".join(f"{n}={before.get(n)!r} (now {plain[n]!r})" for n in changed)
            raise ConfigError(
                f"{self.path} was started with {listed}. Continue with the same, or start again "
                "with --overwrite."
            )


def attack_folders(run: Path) -> list[AttackFolder]:
    """The finished attacks on the model of a run."""
    found = [AttackFolder(path.parent) for path in sorted(run.glob("attacks/*/attack.json"))]
    return [each for each in found if each.describe()["state"] == "done"]
