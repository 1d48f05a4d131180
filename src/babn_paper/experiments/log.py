"""A run's numbers over time, as JSON lines and for TensorBoard."""

import json
from typing import Any

from babn.files import replace_file
from babn_paper.experiments.run_folder import RunFolder


class Log:
    """Appends to a run's `log.jsonl`, and to TensorBoard's files where that is installed.

    Args:
        run: The run.
        step: What was logged after this step is taken away, since it will come again.
    """

    def __init__(self, run: RunFolder, step: int = 0) -> None:
        self._path = run.log
        if run.log.exists():
            kept = [line for line in read_log(run) if line["step"] <= step]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            replace_file(run.log, lambda path: path.write_text(text))
        self._board = _summary_writer(run, step)

    def write(self, values: dict[str, Any]) -> None:
        """Adds a line, which holds the step."""
        with self._path.open("a") as file:
            file.write(json.dumps(values) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, values["step"])

    def close(self) -> None:
        """Writes what is not on disk yet."""
        if self._board is not None:
            self._board.close()


def read_log(run: RunFolder) -> list[dict[str, Any]]:
    """The lines of a run's log, up to one that was cut off or is damaged."""
    lines: list[dict[str, Any]] = []
    for text in run.log.read_bytes().splitlines() if run.log.exists() else []:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            break
        lines.append(line)
    return lines


def _summary_writer(run: RunFolder, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run.tensorboard), purge_step=step)
