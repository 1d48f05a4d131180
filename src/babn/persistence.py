"""Saving and loading: whole models by `save_pretrained` and `load`, or the belief part alone.

A saved model is an ordinary transformers folder: its weights hold the belief parameters beside the
others, its configuration a description of the conversion. Without babn it loads as the
deterministic model.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from babn.attention.rule import RuleConfig
from babn.conversion.convert import (
    FORMAT,
    apply_plan,
    check_convertible,
    check_finite,
    describe,
)
from babn.conversion.discover import discover
from babn.conversion.fingerprint import differing, fingerprint
from babn.conversion.plan import Call, Chain, from_list
from babn.conversion.state import ATTRIBUTE, BeliefState, belief_states, converted_roots
from babn.errors import ExampleInputsError, FormatError, MismatchError, MissingExtraError, one_line
from babn.files import check_files, replace_text
from babn.tensor_files import CHECKSUM, checksum, read_tensors, write_tensors

Model = TypeVar("Model", bound=nn.Module)

DESCRIPTION, WEIGHTS = "belief.json", "belief.safetensors"


def load(
    folder: str | Path,
    model_class: type[Any] | None = None,
    example_inputs: Any = None,
    **kwargs: Any,
) -> Any:
    """A converted model from a folder that `save_pretrained` wrote.

    Args:
        folder: The folder.
        model_class: Class to load with, if it is not one of transformers or of `babn.models`.
        example_inputs: As for `convert`; lets the attention calls be checked where no example can
            be made.
        **kwargs: Passed on to `from_pretrained`.
    """
    folder = Path(folder)
    check_files(folder)
    description = _read_json(folder / "config.json").get(ATTRIBUTE)
    if description is None:
        raise FormatError(
            f"{folder / 'config.json'} describes no conversion. Load the folder with "
            "from_pretrained and call babn.convert, or babn.load_belief if it holds belief weights."
        )
    state = _make_state(description, _belief_tensors(folder), folder / "config.json")
    model = _load_base(folder, model_class, kwargs)
    _check_paths(model, state.chains, folder)
    check_convertible(model, state.config)
    with suppress(ExampleInputsError):
        found = discover(model, example_inputs, state.config.layers)
        _check_chains(state.chains, found.chains, model, folder)
    return apply_plan(model, state)


def save_belief(model: nn.Module, folder: str | Path) -> Path:
    """Writes the belief parameters alone, a few megabytes, to put on top of an untouched base."""
    states = belief_states(model)
    if len(states) > 1:
        raise MismatchError(
            f"{type(model).__name__} holds {len(states)} converted models. Save each by itself."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (root,) = converted_roots(model)
    described = {**describe(states[0]), "base": fingerprint(root, states[0])}
    # The weights hold their description too: an interruption may leave an old one beside them.
    written = write_tensors(
        folder / WEIGHTS, states[0].state_dict(), {ATTRIBUTE: json.dumps(described)}
    )
    text = json.dumps({**described, CHECKSUM: written}, indent=2)
    replace_text(folder / DESCRIPTION, text + "\n")
    return folder


def load_belief(
    model: Model, folder: str | Path, example_inputs: Any = None, *, check_base: bool = True
) -> Model:
    """Converts an untouched base and fills in belief parameters that `save_belief` wrote.

    Args:
        model: The base, of the architecture that the parameters were trained on.
        folder: The folder.
        example_inputs: As for `convert`.
        check_base: Whether some of its weights must be those that the parameters were saved with;
            `False` allows a base that has been trained since.
    """
    folder = Path(folder)
    tensors, about = read_tensors(folder / WEIGHTS, "Save the model again.")
    description = _read_json(folder / DESCRIPTION)
    if ATTRIBUTE in about and description.get(CHECKSUM) != checksum(tensors, about):
        description = json.loads(about[ATTRIBUTE])  # the other file is of an earlier saving
    state = _make_state(description, tensors, folder / DESCRIPTION)
    check_convertible(model, state.config)
    found = discover(model, example_inputs, state.config.layers)
    _check_chains(state.chains, found.chains, model, folder)
    if check_base:
        _check_base(description, model, state, folder)
    return apply_plan(model, state)


def _check_base(description: Any, model: nn.Module, state: BeliefState, folder: Path) -> None:
    """Refuses a base of the right shape with other weights."""
    other = differing(description.get("base") or {}, fingerprint(model, state))
    if other:
        names = ", ".join(other[:2]) + (" ..." if len(other) > 2 else "")
        raise MismatchError(
            f"The belief weights in {folder} were saved from a base with other weights: {names} "
            "differ. Load them onto that base; if its training went on on purpose, pass "
            "check_base=False; to keep a trained base use save_pretrained and babn.load."
        )


def _make_state(description: Any, tensors: dict[str, Tensor], path: Path) -> BeliefState:
    """The state that a description and its tensors make, checked before any model is touched."""
    config, chains, kept = _parse(description, path)
    check_finite(tensors)
    state = BeliefState(config, chains, kept)
    own = state.state_dict()
    tensors = {"temperature": own["temperature"]} | tensors  # the youngest of them
    missing, unknown = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
    shapes = [n for n in own if n in tensors and own[n].shape != tensors[n].shape]
    if missing or unknown or shapes:
        raise MismatchError(
            f"{path.parent} does not fit its description: missing {missing}, unknown {unknown}, of "
            f"another shape {shapes}. Save the model again."
        )
    state.load_state_dict(tensors)
    return state


def _parse(description: Any, path: Path) -> tuple[RuleConfig, tuple[Chain, ...], tuple[Call, ...]]:
    version = description.get("format") if isinstance(description, dict) else None
    if version != FORMAT:
        raise FormatError(
            f"{path} has format {version!r}; this version of babn reads format {FORMAT}. "
            "Install the version of babn that wrote it, or save the model again."
        )
    try:
        chains = from_list(description["chains"])
        if not chains or not all(chain.calls for chain in chains):
            raise ValueError("no attention calls")
        kept = tuple(Call(**call) for call in description.get("kept", ()))
        return RuleConfig.from_dict(dict(description["rule"])), chains, kept
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path} is damaged: {error}. Save the model again.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise FormatError(f"{path} does not exist. Check the folder.") from error
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}. Save the model again.") from error
    if not isinstance(values, dict):
        raise FormatError(f"{path} does not hold a JSON object. Save the model again.")
    return values


def _belief_tensors(folder: Path) -> dict[str, Tensor]:
    """The belief parameters inside a transformers folder, in one file or several."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise FormatError(f"{folder} has no model*.safetensors; other formats are not read.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _tensors_under(f"{ATTRIBUTE}.", file)
    return tensors


def _tensors_under(prefix: str, path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file whose names begin with `prefix`, without it."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path} is damaged: {error}. Save the model again.") from error


def _load_base(folder: Path, model_class: type[Any] | None, kwargs: dict[str, Any]) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            "babn.load needs transformers: pip install 'babn[transformers]'"
        ) from error
    if model_class is None:
        names = _read_json(folder / "config.json").get("architectures") or [""]
        model_class = getattr(transformers, names[0], None) or _own_class(names[0])
        if model_class is None:
            raise FormatError(
                f"{folder / 'config.json'} names the architecture {names[0]!r}, which transformers "
                "does not provide. Pass model_class."
            )
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it would warn of the belief parameters
    try:
        model, report = model_class.from_pretrained(folder, output_loading_info=True, **kwargs)
    except Exception as error:  # damaged files show in transformers in many ways
        raise FormatError(
            f"{folder} cannot be loaded as {model_class.__name__}: {one_line(error)} Save the "
            "model again, or load it with the arguments that fit it."
        ) from error
    finally:
        transformers.logging.set_verbosity(level)
    if missing := sorted(report["missing_keys"]):
        names = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise MismatchError(
            f"{folder} lacks {len(missing)} weights that {model_class.__name__} needs: {names}. "
            "Load the class and the configuration that it was saved from."
        )
    return model


def _own_class(name: str) -> type[Any] | None:
    from babn import models

    return getattr(models, name, None) if name in models.__all__ else None


def _check_paths(model: nn.Module, chains: tuple[Chain, ...], folder: Path) -> None:
    modules = dict(model.named_modules())
    for call in (call for chain in chains for call in chain.calls):
        found = type(modules[call.path]).__name__ if call.path in modules else "nothing"
        if found != call.module:
            raise MismatchError(
                f"{folder} was saved from a model with {call.module} at {call.path}; "
                f"{type(model).__name__} has {found} there. Load the class it was saved from."
            )


def _check_chains(
    saved: tuple[Chain, ...], found: tuple[Chain, ...], model: nn.Module, folder: Path
) -> None:
    def outline(chains: tuple[Chain, ...]) -> list[tuple[str, int, int, int]]:
        return [(c.name, len(c.calls), c.calls[0].heads, c.calls[0].head_dim) for c in chains]

    if outline(saved) != outline(found):
        raise MismatchError(
            f"The belief weights in {folder} are for chains (name, steps, heads, head size) "
            f"{outline(saved)}; {type(model).__name__} has {outline(found)}. Load them onto the "
            "architecture they were trained on."
        )
